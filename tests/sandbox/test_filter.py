"""The filter of system calls, run by a small BPF interpreter: which calls it allows and which it denies."""

import re
import struct
from pathlib import Path

import pytest

from luxx.errors import ToolFailed
from luxx.tools.sandbox.seccomp import (
    AUDIT_ARCH,
    NEWEST_NUMBER,
    NUMBERS,
    DeniedCall,
    assemble,
    denied_calls,
    number_of,
)

MACHINES = list(AUDIT_ARCH)
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, EAFNOSUPPORT = 0x50001, 0x50000 | 38, 0x50000 | 97
HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}


def verdict(program: bytes, machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    given = [*arguments, *[0] * (6 - len(arguments))]
    about = struct.pack("=IIQ6Q", number, arch or AUDIT_ARCH[machine], 0, *given)
    steps = list(struct.iter_unpack("=HBBI", program))
    accumulator, program_counter = 0, 0
    while True:
        code, if_true, if_false, value = steps[program_counter]
        program_counter += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", about, value)
            case 0x54:
                accumulator &= value
            case 0x15:
                program_counter += if_true if accumulator == value else if_false
            case 0x35:
                program_counter += if_true if accumulator >= value else if_false
            case 0x06:
                return value
            case _:
                pytest.fail(f"no such step: {code:#x}")


def of(machine: str, name: str, *arguments: int, denied: list[DeniedCall] | None = None) -> int:
    number = number_of(name, machine)
    assert number is not None
    program = assemble(denied_calls(network=False) if denied is None else denied, machine)
    return verdict(program, machine, number, *arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_named_call_is_denied_and_others_pass(machine: str) -> None:
    for denied in (denied_calls(network=False), denied_calls(network=True, landlock_abi=1)):
        program = assemble(denied, machine)
        for one in denied:
            number = number_of(one.name, machine)
            if number is not None and not one.only_args and not one.unless_args:
                assert verdict(program, machine, number) == 0x50000 | one.error, one.name
        for number in (0, 1, 3, 60 if machine == "x86_64" else 93):
            assert verdict(program, machine, number) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_of_a_call_decide_whether_it_passes(machine: str) -> None:
    assert of(machine, "clone", 17) == ALLOW
    assert of(machine, "clone", 0x003D0F00) == ALLOW
    assert of(machine, "clone", 0x10000000 | 17) == EPERM
    assert of(machine, "clone", 0x00020000) == EPERM
    assert of(machine, "clone", 0x8000 | 17) == EPERM
    assert of(machine, "prctl", 4, 0) == EPERM
    assert of(machine, "prctl", 15, 0) == ALLOW
    assert of(machine, "clone3") == ENOSYS
    assert of(machine, "ioctl", 0, 0x5412) == EPERM
    assert of(machine, "ioctl", 0, 0xFFFFFFFF_00005412) == EPERM
    assert of(machine, "ioctl", 0, 0x5413) == ALLOW
    assert of(machine, "personality", 0) == ALLOW
    assert of(machine, "personality", 0xFFFFFFFF) == ALLOW
    assert of(machine, "personality", 0x40000) == EPERM
    assert of(machine, "prlimit64", 0) == ALLOW
    assert of(machine, "prlimit64", 1) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_depend_on_backend_and_network(machine: str) -> None:
    families = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16, "packet": 17, "vsock": 40}
    allowed = {
        (None, False): {"unix", "inet", "inet6"},
        (None, True): {"inet", "inet6"},
        (7, False): set[str](),
        (7, True): {"inet", "inet6"},
    }
    for (abi, network), names in allowed.items():
        denied = denied_calls(network=network, landlock_abi=abi)
        passed = {
            name for name, one in families.items() if of(machine, "socket", one, denied=denied) == ALLOW
        }
        assert passed == names
        other = {of(machine, "socket", one, denied=denied) for one in families.values()} - {ALLOW}
        assert other == {EAFNOSUPPORT}
    landlock = denied_calls(network=False, landlock_abi=7)
    assert of(machine, "socketpair", 1, 1 | 0o2000000, denied=landlock) == ALLOW
    assert of(machine, "socketpair", 1, 2, denied=landlock) == EPERM
    assert of(machine, "socketpair", 2, 1, denied=landlock) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_an_older_landlock_leaves_more_to_the_filter(machine: str) -> None:
    def denied(name: str, abi: int) -> bool:
        return of(machine, name, denied=denied_calls(network=False, landlock_abi=abi)) == EPERM

    assert [denied("kill", abi) for abi in (1, 5, 6, 7)] == [True, True, False, False]


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_that_send_signals_are_denied_without_landlock_scopes(machine: str) -> None:
    def passes(abi: int | None, name: str, *arguments: int) -> bool:
        denied = denied_calls(network=False, landlock_abi=abi)
        return of(machine, name, *arguments, denied=denied) == ALLOW

    for abi, is_open in ((3, False), (5, False), (6, True), (None, True)):
        for command in (8, 10, 15):
            assert passes(abi, "fcntl", 3, command) is is_open
        for request in (0x8901, 0x8902):
            assert passes(abi, "ioctl", 3, request) is is_open
        assert passes(abi, "fcntl", 3, 4)
        assert not passes(abi, "ioctl", 0, 0x5412)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_program_without_namespaces_may_change_only_its_own_priority(machine: str) -> None:
    def passes(name: str, which: int, who: int) -> bool:
        return of(machine, name, which, who, denied=denied_calls(network=False, landlock_abi=7)) == ALLOW

    # `which` selects one process: 0 in `setpriority`, 1 in `ioprio_set`.
    assert [passes("setpriority", which, 0) for which in (0, 1, 2)] == [True, False, False]
    assert [passes("ioprio_set", which, 0) for which in (1, 2, 3)] == [True, False, False]
    assert not passes("setpriority", 0, 77)
    assert not passes("ioprio_set", 1, 77)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_newer_than_the_filter_fails_with_enosys(machine: str) -> None:
    for landlock in (None, 7):
        program = assemble(denied_calls(network=False, landlock_abi=landlock), machine)
        assert [verdict(program, machine, number) for number in (466, 468, 469, 470, 999)] == [
            0x50000 | 95 if landlock else ALLOW,
            *[ENOSYS] * 4,
        ]
    assert max(one for pair in NUMBERS.values() for one in pair if one is not None) <= NEWEST_NUMBER


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_of_another_architecture_kills_the_process(machine: str) -> None:
    program = assemble(denied_calls(network=False), machine)
    assert verdict(program, machine, 0, arch=0x40000003) == KILL
    x32 = verdict(program, machine, 0x40000000)
    assert x32 == (KILL if machine == "x86_64" else ENOSYS)


def test_an_unknown_machine_has_no_filter() -> None:
    with pytest.raises(ToolFailed, match="riscv64"):
        assemble(denied_calls(network=False), "riscv64")


@pytest.mark.parametrize("machine", MACHINES)
def test_call_numbers_match_the_headers_of_the_kernel(machine: str) -> None:
    header = Path(HEADERS[machine])
    text = header.read_text("utf-8") if header.exists() else ""
    real = {name: int(number) for name, number in re.findall(r"__NR(?:3264)?_(\w+)\s+(\d+)", text)}
    ours = {name: number_of(name, machine) for name in NUMBERS}
    assert {name: number for name, number in ours.items() if real.get(name, number) != number} == {}
    numbers = [number for number in ours.values() if number is not None]
    assert len(numbers) == len(set(numbers))
