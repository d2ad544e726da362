"""Verbs over a `Host`: survey, verify, plan, install, launch, investigate, benchmark."""
