import pytest

from harness import Server, new_key
from two_hosts import two_hosts, veth


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []


@pytest.fixture(scope="module")
def network():
    """Two hosts with a network stack each, and the wire between them."""
    with two_hosts(veth) as (near, far, _):
        yield near, far


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return new_key(tmp_path_factory.mktemp("key") / "key")
