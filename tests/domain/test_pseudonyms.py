"""Pseudonyms: one name for each host, address and user, wherever it stands; nothing else is touched."""

from hypothesis import given
from hypothesis import strategies as st

from opslib.domain.pseudonyms import pseudonyms_for, with_pseudonyms

FACTS = {
    "host": "gpu-07",
    "user": "ada (sudo by grace)",
    "controller": "bastion.example.org",
    "answered": {"hostname": "gpu-07-a", "user": "vllmops"},
    "actions": [{"user": "ada", "section": "install"}],
    "parameters": {"hosts": ["gpu-07", "gpu-08"], "unit": "vllm-a"},
}
JOURNAL = """{"_HOSTNAME": "gpu-07-a", "MESSAGE": "grace@gpu-07: from 10.1.2.3 port 22, fe80::1ff:fe23:4567:890a, /home/hopper/x"}
{"MESSAGE": "127.0.0.1 and ::1 at 12:00:01 with vLLM 0.15.0, torch 2.8.0.1234"}
"""
KEPT = "12:00:01 0.15.0 2.8.0.1234 127.0.0.1 ::1 /root vllm-a sha256:9f86d081884c7d65 rehearsal gpu-070"


def test_each_name_has_one_pseudonym_everywhere():
    """Aliases, host names, logins and addresses are numbered in the order in which they come, and replaced as words."""
    pairs = pseudonyms_for(FACTS, [JOURNAL])
    hosts = {name for name, other in pairs.items() if other.startswith("host-")}
    assert hosts == {"gpu-07", "bastion.example.org", "gpu-07-a", "gpu-08"}
    assert {name for name, other in pairs.items() if other.startswith("user-")} == {"ada", "grace", "vllmops", "hopper"}
    assert {name for name, other in pairs.items() if other.startswith("address-")} == {
        "10.1.2.3",
        "fe80::1ff:fe23:4567:890a",
    }
    assert len(set(pairs.values())) == len(pairs)
    told = with_pseudonyms(JOURNAL, pairs)
    assert not [name for name in pairs if name in told]
    assert f"{pairs['grace']}@{pairs['gpu-07']}: from {pairs['10.1.2.3']} port 22" in told
    assert f"/home/{pairs['hopper']}/x" in told


def test_what_names_nobody_stays():
    """Times, versions, loopback addresses, root, digests, and names that only begin alike are as they were."""
    assert with_pseudonyms(KEPT, pseudonyms_for(FACTS, [JOURNAL, KEPT])) == KEPT


@given(st.lists(st.sampled_from([*FACTS["parameters"]["hosts"], "10.1.2.3", "ada", " ", "/", ":", "x"])))
def test_pseudonyms_are_stable(words):
    """What has its pseudonyms has nothing left to replace."""
    pairs = pseudonyms_for(FACTS, [JOURNAL])
    once = with_pseudonyms("".join(words), pairs)
    assert with_pseudonyms(once, pairs) == once
