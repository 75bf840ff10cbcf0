"""The filter of system calls, run by a small BPF interpreter: which calls it allows and which it denies."""

import errno
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
"""SECCOMP_RET_ALLOW and SECCOMP_RET_KILL_PROCESS of the kernel."""


def errno_result(error: int) -> int:
    """SECCOMP_RET_ERRNO: the call fails with this error."""
    return 0x50000 | error


EPERM, ENOSYS = errno_result(errno.EPERM), errno_result(errno.ENOSYS)
EAFNOSUPPORT, EOPNOTSUPP = errno_result(errno.EAFNOSUPPORT), errno_result(errno.EOPNOTSUPP)
HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}


def run_filter(program: bytes, machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """Interprets the BPF program as the kernel does for one call, and returns its result.

    The program reads `struct seccomp_data`: number, architecture, instruction pointer, six arguments.
    """
    six_arguments = [*arguments, *[0] * (6 - len(arguments))]
    call_data = struct.pack("=IIQ6Q", number, arch or AUDIT_ARCH[machine], 0, *six_arguments)
    steps = list(struct.iter_unpack("=HBBI", program))
    accumulator, program_counter = 0, 0
    while True:
        code, if_true, if_false, value = steps[program_counter]
        program_counter += 1
        match code:
            case 0x20:  # load a word
                (accumulator,) = struct.unpack_from("=I", call_data, value)
            case 0x54:  # and
                accumulator &= value
            case 0x15:  # jump if equal
                program_counter += if_true if accumulator == value else if_false
            case 0x35:  # jump if greater or equal
                program_counter += if_true if accumulator >= value else if_false
            case 0x06:  # return
                return value
            case _:
                pytest.fail(f"the interpreter does not know the instruction {code:#x}")


def filter_result(machine: str, name: str, *arguments: int, denied: list[DeniedCall] | None = None) -> int:
    """The result for a call by name, of the filter for programs without network or of that for `denied`."""
    number = number_of(name, machine)
    assert number is not None
    program = assemble(denied_calls(network=False) if denied is None else denied, machine)
    return run_filter(program, machine, number, *arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_named_call_is_denied_and_others_pass(machine: str) -> None:
    for denied in (denied_calls(network=False), denied_calls(network=True, landlock_abi=1)):
        program = assemble(denied, machine)
        for denied_call in denied:
            number = number_of(denied_call.name, machine)
            if number is not None and not denied_call.only_args and not denied_call.unless_args:
                assert run_filter(program, machine, number) == errno_result(denied_call.error), (
                    denied_call.name
                )
        # read, write, close and exit on x86_64; other harmless calls and exit on aarch64.
        for number in (0, 1, 3, 60 if machine == "x86_64" else 93):
            assert run_filter(program, machine, number) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_of_a_call_decide_whether_it_passes(machine: str) -> None:
    sigchld = 17
    assert filter_result(machine, "clone", sigchld) == ALLOW
    assert filter_result(machine, "clone", 0x003D0F00) == ALLOW  # The flags of pthread_create.
    assert filter_result(machine, "clone", 0x10000000 | sigchld) == EPERM  # CLONE_NEWUSER
    assert filter_result(machine, "clone", 0x00020000) == EPERM  # CLONE_NEWNS
    assert filter_result(machine, "clone", 0x8000 | sigchld) == EPERM  # CLONE_PARENT
    assert filter_result(machine, "prctl", 4, 0) == EPERM  # PR_SET_DUMPABLE
    assert filter_result(machine, "prctl", 15, 0) == ALLOW  # PR_SET_NAME
    assert filter_result(machine, "clone3") == ENOSYS
    assert filter_result(machine, "ioctl", 0, 0x5412) == EPERM  # TIOCSTI
    # The kernel uses only the lower 32 bits of the request.
    assert filter_result(machine, "ioctl", 0, 0xFFFFFFFF_00005412) == EPERM
    assert filter_result(machine, "ioctl", 0, 0x5413) == ALLOW  # TIOCGWINSZ
    assert filter_result(machine, "personality", 0) == ALLOW
    assert filter_result(machine, "personality", 0xFFFFFFFF) == ALLOW  # It only reads the personality.
    assert filter_result(machine, "personality", 0x40000) == EPERM  # ADDR_NO_RANDOMIZE
    assert filter_result(machine, "prlimit64", 0) == ALLOW  # The calling process.
    assert filter_result(machine, "prlimit64", 1) == EPERM  # Another process.


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_depend_on_backend_and_network(machine: str) -> None:
    families = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16, "packet": 17, "vsock": 40}
    # By ABI of Landlock (None: a backend with namespaces) and whether the program has the network.
    allowed = {
        (None, False): {"unix", "inet", "inet6"},
        (None, True): {"inet", "inet6"},
        (7, False): set[str](),
        (7, True): {"inet", "inet6"},
    }
    for (abi, network), names in allowed.items():
        denied = denied_calls(network=network, landlock_abi=abi)
        passed = {
            name
            for name, family in families.items()
            if filter_result(machine, "socket", family, denied=denied) == ALLOW
        }
        assert passed == names
        refused_results = {
            filter_result(machine, "socket", family, denied=denied) for family in families.values()
        } - {ALLOW}
        assert refused_results == {EAFNOSUPPORT}
    landlock = denied_calls(network=False, landlock_abi=7)
    # Pairs of Unix stream sockets only: AF_UNIX and SOCK_STREAM are 1, with SOCK_CLOEXEC here.
    assert filter_result(machine, "socketpair", 1, 1 | 0o2000000, denied=landlock) == ALLOW
    assert filter_result(machine, "socketpair", 1, 2, denied=landlock) == EPERM
    assert filter_result(machine, "socketpair", 2, 1, denied=landlock) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_an_older_landlock_leaves_more_to_the_filter(machine: str) -> None:
    def denied(name: str, abi: int) -> bool:
        return filter_result(machine, name, denied=denied_calls(network=False, landlock_abi=abi)) == EPERM

    assert [denied("kill", abi) for abi in (1, 5, 6, 7)] == [True, True, False, False]


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_that_send_signals_are_denied_without_landlock_scopes(machine: str) -> None:
    def passes(abi: int | None, name: str, *arguments: int) -> bool:
        denied = denied_calls(network=False, landlock_abi=abi)
        return filter_result(machine, name, *arguments, denied=denied) == ALLOW

    for abi, is_open in ((3, False), (5, False), (6, True), (None, True)):
        # F_SETOWN, F_SETSIG and F_SETOWN_EX; FIOSETOWN and SIOCSPGRP.
        for command in (8, 10, 15):
            assert passes(abi, "fcntl", 3, command) is is_open
        for request in (0x8901, 0x8902):
            assert passes(abi, "ioctl", 3, request) is is_open
        assert passes(abi, "fcntl", 3, 4)  # F_SETFL
        assert not passes(abi, "ioctl", 0, 0x5412)  # TIOCSTI


@pytest.mark.parametrize("machine", MACHINES)
def test_a_program_without_namespaces_may_change_only_its_own_priority(machine: str) -> None:
    def passes(name: str, which: int, who: int) -> bool:
        return (
            filter_result(machine, name, which, who, denied=denied_calls(network=False, landlock_abi=7))
            == ALLOW
        )

    # `which` selects one process: 0 in `setpriority`, 1 in `ioprio_set`.
    assert [passes("setpriority", which, 0) for which in (0, 1, 2)] == [True, False, False]
    assert [passes("ioprio_set", which, 0) for which in (1, 2, 3)] == [True, False, False]
    assert not passes("setpriority", 0, 77)
    assert not passes("ioprio_set", 1, 77)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_newer_than_the_filter_fails_with_enosys(machine: str) -> None:
    for landlock in (None, 7):
        program = assemble(denied_calls(network=False, landlock_abi=landlock), machine)
        assert [run_filter(program, machine, number) for number in (466, 468, 469, 470, 999)] == [
            EOPNOTSUPP if landlock else ALLOW,
            *[ENOSYS] * 4,
        ]
    assert max(number for pair in NUMBERS.values() for number in pair if number is not None) <= NEWEST_NUMBER


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_of_another_architecture_kills_the_process(machine: str) -> None:
    program = assemble(denied_calls(network=False), machine)
    i386 = 0x40000003
    assert run_filter(program, machine, 0, arch=i386) == KILL
    # Calls of the x32 ABI have the architecture of x86_64 and bit 30 in their number.
    x32_result = run_filter(program, machine, 0x40000000)
    assert x32_result == (KILL if machine == "x86_64" else ENOSYS)


def test_an_unknown_machine_has_no_filter() -> None:
    with pytest.raises(ToolFailed, match="riscv64"):
        assemble(denied_calls(network=False), "riscv64")


@pytest.mark.parametrize("machine", MACHINES)
def test_call_numbers_match_the_headers_of_the_kernel(machine: str) -> None:
    header = Path(HEADERS[machine])
    text = header.read_text("utf-8") if header.exists() else ""
    kernel_numbers = {name: int(number) for name, number in re.findall(r"__NR(?:3264)?_(\w+)\s+(\d+)", text)}
    ours = {name: number_of(name, machine) for name in NUMBERS}
    assert {name: number for name, number in ours.items() if kernel_numbers.get(name, number) != number} == {}
    numbers = [number for number in ours.values() if number is not None]
    assert len(numbers) == len(set(numbers))
