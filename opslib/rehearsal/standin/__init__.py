"""Stand-in programs: standard library only, Python 3.8, copied to a host by `standin_install` and run there."""
