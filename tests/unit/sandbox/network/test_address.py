"""Only public addresses may be reached, however they are written."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.sandbox.network.address import address_problem

PRIVATE = (
    "0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.255 169.254.0.1 169.254.169.254"
    " 172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.255 198.51.100.1"
    " 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255"
    " :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:0:8.8.8.8 64:ff9b::7f00:1 64:ff9b::808:808"
    " 64:ff9b:1::1 100::1 2001::1 2001:0:53aa:64c:0:0:80ff:fffe 2001:2::1 2001:db8::1 2002:7f00:1:: 2002:808:808::1"
    " 3fff::1 4000::1 fc00::1 fd00:ec2::254 fd12:3456::1 fe80::1 fe80::1%eth0 fec0::1 ff02::1 ff0e::1"
    " 2a00:1450::5efe:7f00:1 2a00:1450::200:5efe:10.0.0.1"
).split()
PUBLIC = "1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.32.0.1 93.184.216.34 2606:4700::1111 2a00:1450:4001::1".split()


@pytest.mark.parametrize("text", PRIVATE)
def test_what_is_not_public_is_refused(text: str) -> None:
    assert address_problem(ip_address(text), 443)


@pytest.mark.parametrize("text", ["127.0.0.1", "::1"])
def test_this_machine_is_called_so(text: str) -> None:
    assert address_problem(ip_address(text), 443) == "this machine"


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_public_may_be_reached(text: str) -> None:
    assert address_problem(ip_address(text), 443) == ""


@given(st.ip_addresses())
def test_nothing_that_python_calls_inside_is_let_through(address: object) -> None:
    found = ip_address(str(address))
    inside = found.is_private or found.is_loopback or found.is_link_local or found.is_multicast or found.is_reserved
    assert not inside or address_problem(found, 80)
