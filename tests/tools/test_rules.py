"""Which rule decides: the last match, by the order of scopes, and only if the match is certain."""

import time
from pathlib import Path
from typing import Any

import pytest

from luxx.infra.config.schema import ToolRule, ToolsConfig
from luxx.tools.core import CallPermissions, CommandPermission, Risk, ToolCaller, ToolContext, ToolDefinition
from luxx.tools.permissions.judge import DecidedBy, Judge, PermissionVerdict
from luxx.wire.tool import PlacedRule, RuleAction, RuleScope

SUBJECTS = {"shell_execute": "command", "file_write": "path", "web_fetch": "url", "batch_fetch": "urls"}
Lists = dict[RuleScope, list[str]]


def tool_of(name: str, **more: Any) -> ToolDefinition:
    subject = SUBJECTS.get(name, "text")
    return ToolDefinition(
        name=name,
        description="d",
        parameters={"type": "object", "properties": {subject: {}}, "required": [subject]},
        handler=lambda arguments, context: None,
        **more,
    )


def rules_of(lists: Lists) -> tuple[PlacedRule, ...]:
    """`allow git *` is a rule for the shell, `deny file_write(docs/*)` for the tool that it names."""
    made: list[PlacedRule] = []
    for scope, texts in lists.items():
        for place, text in enumerate(texts):
            action, _, rest = text.partition(" ")
            tool, separator, pattern = rest.partition("(")
            if not separator:
                tool, pattern = "shell_execute", f"{rest})"
            made.append(
                PlacedRule(
                    tool=tool, pattern=pattern[:-1], action=RuleAction(action), scope=scope, place=place
                )
            )
    return tuple(made)


def judge_call(
    rules: list[str] | Lists, given: Any, name: str = "shell_execute", **more: Any
) -> PermissionVerdict:
    lists = rules if isinstance(rules, dict) else {RuleScope.USER: rules}
    context = ToolContext(
        caller=ToolCaller(user_id=1, username="ann", permission_level=CommandPermission.ADMIN),
        permissions=CallPermissions(
            rules=rules_of(lists),
            tainted_by=more.pop("tainted_by", None),
            workspace=more.pop("workspace", None),
        ),
    )
    is_sandboxed = more.pop("is_sandboxed", True)
    own = [
        ToolRule(tool=rule.tool, pattern=rule.pattern, action=rule.action.value)
        for rule in rules_of({RuleScope.SERVER: more.pop("server", [])})
    ]
    more.setdefault("risk", Risk.HIGH if name == "shell_execute" else Risk.LOW)
    judge = Judge(ToolsConfig(rules=own), lambda: is_sandboxed)
    return judge.verdict(tool_of(name, **more), {SUBJECTS.get(name, "text"): given}, context)


SHELL: list[tuple[list[str], str, str]] = [
    (["allow git *"], "git status", "allow"),
    (["allow git *"], "git", "allow"),
    (["allow git"], "git status", "ask"),
    (["allow git *"], "gitk x", "ask"),
    (["allow git *"], "./git x", "ask"),
    (["allow git *"], "git status; rm -rf /", "ask"),
    (["allow git *", "allow rm *"], "git status; rm -rf /", "allow"),
    (["allow git *", "deny rm *"], "git status; rm -rf /", "deny"),
    (["allow git *"], "git status | sh", "ask"),
    (["allow git *"], "git $(rm x)", "ask"),
    (["allow git *", "deny rm *"], "git $(rm x)", "deny"),
    (["allow git *"], "git status > x", "ask"),
    (["allow git *"], "A=1 git status", "ask"),
    (["allow git *"], "git 'status; rm x'", "allow"),
    (["allow git push *", "deny git push * --force *"], "git push origin --force", "deny"),
    (["deny git push *", "allow git push origin *"], "git push origin main", "allow"),
    (["deny rm *"], "\\rm x", "deny"),
    (["deny rm *"], "/bin/rm x", "deny"),
    (["deny rm *"], "sudo -u root rm x", "deny"),
    (["deny rm *"], "xargs -0 /bin/rm", "deny"),
    (["deny rm *"], "find . -exec rm {} +", "deny"),
    (["deny rm *"], "bash -c 'rm x'", "deny"),
    (["deny rm *"], "git rm x", "ask"),
    (["deny rm *"], "timeout 5 bash -c 'rm -rf x'", "deny"),
    (["deny rm *"], "env -S 'rm -rf x'", "deny"),
    (["deny rm *"], "su -c 'rm x'", "deny"),
    (["deny rm *"], "ssh-agent rm x", "deny"),
    (["deny rm *"], "start-stop-daemon --exec /bin/rm", "deny"),
    (["allow *", "deny rm *"], "printf -v 'a[$(rm x)]' y", "ask"),
    (["allow printf *"], "printf -v 'a[$(rm x)]' y", "ask"),
    (["allow find *"], "find . -fprint0 .bashrc", "ask"),
    (["allow git log *"], "git log > 1 /dev/null", "ask"),
    (["allow git *", "ask git push *"], "git -C . push", "ask"),
    (["allow git *", "ask git push *"], "git --no-pager log", "allow"),
    (["allow git diff *"], "git diff --output=f", "ask"),
    (["allow *", "deny =rm -rf docs"], "/bin/rm -rf docs", "deny"),
    (["allow *", "deny =rm -rf docs"], "rm  -rf 'docs'", "deny"),
    (["allow *", "deny =rm -rf docs"], "rm -rf docs2", "allow"),
    (["allow *", "deny =git push"], "timeout 9 git push", "deny"),
    (["allow *"], "anything $(at all)", "allow"),
    (["allow *", "deny rm *"], "anything $(at all)", "ask"),
    (["allow *", "deny rm *"], "anything at all", "allow"),
    (["deny rm *", "allow *"], "rm x", "allow"),
    (["deny *"], "anything $(at all)", "deny"),
    (["allow cat docs/*"], "cat docs/a", "allow"),
    (["allow cat docs/*"], "cat docs/../secret", "ask"),
    (["allow =ls *.py"], "ls *.py", "allow"),
    (["allow =ls *.py"], "ls x.py", "ask"),
    (["allow ls ?.py"], "ls x.py", "allow"),
    (["allow ls"], "", "ask"),
    (["allow git commit -m 'a b'"], 'git commit -m "a b"', "allow"),
]


@pytest.mark.parametrize(("rules", "command", "action"), SHELL, ids=str)
def test_commands_are_matched_by_their_words_and_each_has_to_be_allowed(
    rules: list[str], command: str, action: str
) -> None:
    assert judge_call(rules, command).action == action


OTHERS: list[tuple[str, list[str], Any, str]] = [
    ("file_write", ["deny file_write(*)", "allow file_write(docs/*)"], "docs/a.md", "allow"),
    ("file_write", ["deny file_write(*)", "allow file_write(docs/*)"], "./docs//a.md", "allow"),
    ("file_write", ["deny file_write(*)", "allow file_write(docs/*)"], "docs/../secret", "deny"),
    ("file_write", ["allow file_write(*)", "deny file_write(secret/*)"], "docs/../secret/a", "deny"),
    ("file_write", ["allow file_write(*)", "deny file_write(secret/*)"], "secret", "deny"),
    ("file_write", ["allow file_write(*)", "deny file_write(secret/*)"], "/ws/secret/a", "ask"),
    ("file_write", ["deny file_write(=./a.txt)"], "a.txt", "deny"),
    ("file_write", ["deny file_write(=a.txt)"], "./a.txt", "deny"),
    ("file_write", ["deny file_*(*)"], "a", "deny"),
    ("file_write", ["deny file_?rite(*)"], "a", "deny"),
    ("file_write", ["deny file_read(*)"], "a", "allow"),
    ("web_fetch", ["ask web_fetch(*)", "allow web_fetch(https://a.org/*)"], "https://a.org/x", "allow"),
    ("web_fetch", ["ask web_fetch(*)", "allow web_fetch(https://a.org/*)"], "HTTPS://A.org.:443/x", "allow"),
    ("web_fetch", ["ask web_fetch(*)", "allow web_fetch(https://a.org/*)"], "https://a.org", "allow"),
    ("web_fetch", ["ask web_fetch(*)", "allow web_fetch(https://a.org/*)"], "https://a.org:8/x", "ask"),
    ("web_fetch", ["ask web_fetch(*)", "allow web_fetch(https://a.org/*)"], "https://a.org@b.org/", "ask"),
    ("web_fetch", ["ask web_fetch(*)", "allow web_fetch(https://*.a.org/*)"], "https://b.org/.a.org/", "ask"),
    ("web_fetch", ["ask web_fetch(*)", "allow web_fetch(*.a.org/*)"], "https://b.org/?.a.org/", "ask"),
    ("web_fetch", ["ask web_fetch(*)", "allow web_fetch(*.a.org/*)"], "http://x.a.org/y", "allow"),
    ("web_fetch", ["ask web_fetch(*)", "allow web_fetch(https://*.a.org/*)"], "https://b\\.a.org/", "ask"),
    ("web_fetch", ["ask web_fetch(*)", "allow web_fetch(https://*.a.org/*)"], "https://b#.a.org/", "ask"),
    ("web_fetch", ["ask *(*)", "allow *(https://a.org/my/*)"], "https://a.org/my/../x", "ask"),
    ("web_fetch", ["ask *(*)", "allow *(https://a.org/my/*)"], "https://a.org/my/%2e%2e/x", "ask"),
    ("web_fetch", ["ask *(*)", "allow *(https://a.org/my/*)"], "https://a.org/my/%2E./x", "ask"),
    ("web_fetch", ["ask *(*)", "allow *(https://a.org/my/*)"], "https://a.org/my/..%2fx", "ask"),
    ("web_fetch", ["ask *(*)", "allow *(https://a.org/my/*)"], "https://a.org/my/b?c=/../d", "allow"),
    ("web_fetch", ["ask *(*)", "allow *(https://a.org/my/*)"], "https://a.org/%6dy/b", "allow"),
    ("web_fetch", ["deny web_fetch(https://a.org/no/*)"], "https://a.org/%6Eo/x", "deny"),
    ("web_fetch", ["deny web_fetch(https://a.org/%6Eo/*)"], "https://a.org/no/x", "deny"),
    ("web_fetch", ["deny web_fetch(https://a.org/no/*)"], "https://a.org/no", "deny"),
    ("web_fetch", ["deny web_fetch(https://a.org/no/*)"], "https://a.org/no?x=1", "deny"),
    ("web_fetch", ["deny web_fetch(https://a.org/no/*)"], "https://a.org/now", "allow"),
    ("web_fetch", ["deny web_fetch(=https://a.org/no)"], "https://A.org./%6eo", "deny"),
    ("web_fetch", ["deny web_fetch(*://93.184.216.34/*)"], "http://1572395042/", "deny"),
    ("web_fetch", ["deny web_fetch(*://93.184.216.34/*)"], "http://0x5db8d822/x", "deny"),
    ("web_fetch", ["deny web_fetch(*://93.184.216.34/*)"], "http://[::ffff:93.184.216.34]/", "deny"),
    ("web_fetch", ["deny web_fetch(*://1572395042/*)"], "http://93.184.216.34/", "deny"),
    ("web_fetch", ["deny web_fetch(*evil*)"], "https://ok.org/evil", "deny"),
    ("batch_fetch", ["deny batch_fetch(https://b.org/*)"], ["https://a.org/", "https://b.org/"], "deny"),
    ("batch_fetch", ["ask *(*)", "allow batch_fetch(https://a.org/*)"], ["https://a.org/"] * 2, "allow"),
    ("batch_fetch", ["ask *(*)", "allow batch_fetch(https://a.org/*)"], ["https://a.org/", "x"], "ask"),
    ("batch_fetch", ["deny batch_fetch(*)"], [], "deny"),
    ("mcp__a_b__c", ["deny mcp__*(*)"], "x", "deny"),
    ("say", ["deny say(*secret*)"], "a\nsecret\nb", "deny"),
    ("say", ["deny say(12)"], 12, "deny"),
    ("say", ["ask say(*)", "allow say(docs/*)"], "docs/../secret", "ask"),
    ("say", ["deny say(secret/*)"], "docs/../secret/a", "deny"),
]


@pytest.mark.parametrize(("name", "rules", "given", "action"), OTHERS, ids=str)
def test_paths_addresses_and_texts_are_matched_by_their_meaning(
    name: str, rules: list[str], given: Any, action: str
) -> None:
    assert judge_call(rules, given, name).action == action


SERVER, TENANT, USER, PROJECT = list(RuleScope)[:4]
SCOPES: list[tuple[Lists, str, str, str]] = [
    ({TENANT: ["ask *"], USER: ["allow git *"]}, "git x", "allow", "user"),
    ({PROJECT: ["ask git *"], USER: ["allow git *"]}, "git x", "ask", "project"),
    ({TENANT: ["deny git *"], USER: ["allow *"]}, "git x", "deny", "tenant"),
    ({TENANT: ["deny git *", "allow git status *"], USER: []}, "git status", "allow", "tenant"),
    ({TENANT: ["allow *"], USER: ["deny git *"], PROJECT: ["allow git *"]}, "git x", "allow", "project"),
    ({TENANT: ["deny rm *"], USER: ["allow *"]}, "echo $(x)", "deny", "tenant"),
    ({TENANT: ["deny rm *"], USER: ["allow *"]}, "X=rm; $X -rf y", "deny", "tenant"),
    ({TENANT: ["deny rm *", "allow =echo $HOME"], USER: ["ask *"]}, "echo $HOME", "ask", "user"),
    ({TENANT: ["ask rm *"], USER: ["allow *"]}, "echo $(x)", "allow", "user"),
    ({USER: ["deny rm *", "allow git *"]}, "echo $(x)", "ask", ""),
]


@pytest.mark.parametrize(("lists", "command", "action", "scope"), SCOPES, ids=str)
def test_the_last_scope_decides_except_for_denials_of_higher_scopes(
    lists: Lists, command: str, action: str, scope: str
) -> None:
    verdict = judge_call(lists, command)
    assert verdict.action == action
    assert (verdict.rule.scope if verdict.rule else "") == scope


def test_a_tenant_cannot_allow_what_the_server_denies() -> None:
    assert judge_call({TENANT: ["allow *"]}, "git x", server=["deny git *"]).action == "deny"
    assert judge_call({TENANT: ["allow *"]}, "ls x", server=["deny git *"]).action == "allow"
    assert judge_call({USER: ["ask git *"]}, "git x", server=["allow git *"]).action == "ask"


def test_a_tool_that_is_denied_for_all_arguments_is_not_offered() -> None:
    def offered(lists: Lists) -> bool:
        return Judge(ToolsConfig()).is_offered(tool_of("shell_execute"), rules_of(lists))

    assert offered({})
    assert not offered({USER: ["deny *"]})
    assert not offered({USER: ["deny *", "deny git *"]})
    assert offered({USER: ["deny *", "allow git *"]})
    assert offered({USER: ["deny git *"]})
    assert not offered({TENANT: ["deny *"], USER: ["allow *"]})


@pytest.mark.parametrize(
    "url",
    ["https://a.org/x/../no/x", "https://a.org/./no/x", "https://a.org//no/x", "https://b@a.org/no/x"],
)
def test_an_address_that_may_match_a_deny_rule_of_the_tenant_is_denied(url: str) -> None:
    verdict = judge_call({TENANT: ["deny web_fetch(https://a.org/no/*)"]}, url, "web_fetch")
    assert (verdict.action, verdict.decided_by) == ("deny", DecidedBy.NOT_UNDERSTOOD)
    assert "the tenant's rule 1" in verdict.because


def test_an_absolute_path_into_the_workspace_is_matched_as_a_relative_one() -> None:
    def of(path: str, *rules: str) -> str:
        return judge_call({TENANT: list(rules)}, path, "file_write", workspace=Path("/ws")).action

    assert of("/ws/secret/a", "deny file_write(secret/*)") == "deny"
    assert of("/ws/docs/a", "deny file_write(secret/*)") == "allow"
    assert of("/ws2/docs/a", "deny file_write(secret/*)") == "deny"
    assert of("/ws/x/../secret/a", "ask file_write(secret/*)") == "ask"


DEFAULTS: list[tuple[dict[str, Any], str, DecidedBy]] = [
    ({"risk": Risk.LOW}, "allow", DecidedBy.RISK),
    ({"risk": Risk.MEDIUM}, "allow", DecidedBy.RISK),
    ({"risk": Risk.HIGH}, "ask", DecidedBy.RISK),
    ({"risk": Risk.HIGH, "only_asks": True}, "allow", DecidedBy.QUESTION),
    ({"starts_programs": True}, "allow", DecidedBy.RISK),
    ({"starts_programs": True, "is_sandboxed": False}, "ask", DecidedBy.SANDBOX),
    ({"is_egress": True}, "allow", DecidedBy.RISK),
    ({"is_egress": True, "tainted_by": "web_fetch"}, "ask", DecidedBy.TAINT),
    ({"tainted_by": "web_fetch"}, "allow", DecidedBy.RISK),
    (
        {"required_permission": CommandPermission.EXECUTE, "tainted_by": "web_fetch"},
        "ask",
        DecidedBy.TAINT,
    ),
    ({"required_permission": CommandPermission.WRITE, "tainted_by": "web_fetch"}, "allow", DecidedBy.RISK),
]


@pytest.mark.parametrize(("more", "action", "by"), DEFAULTS, ids=str)
def test_without_a_rule_taint_sandbox_and_risk_decide_and_a_rule_has_priority(
    more: dict[str, Any], action: str, by: DecidedBy
) -> None:
    verdict = judge_call([], "x", "say", **more)
    assert (verdict.action, verdict.decided_by, verdict.rule) == (action, by, None)
    assert judge_call(["allow say(*)"], "x", "say", **more).action == "allow"
    assert judge_call(["deny say(*)"], "x", "say", **more).action == "deny"


def test_a_tool_of_an_mcp_server_asks_in_a_tainted_run() -> None:
    assert judge_call([], "x", "mcp__a_b__c", tainted_by="mcp__a_b__c").decided_by == DecidedBy.TAINT


USUAL: list[tuple[str, Any, str]] = [
    ("shell_execute", "git status --short", "git status *"),
    ("shell_execute", "git log -3 --oneline -- src", "git log *"),
    ("shell_execute", "git grep -n needle", "git grep *"),
    ("shell_execute", "git grep -nOrm needle", "=git grep -nOrm needle"),
    ("shell_execute", "git log --show-signature", "=git log --show-signature"),
    ("shell_execute", "git diff --stat --outpu=x", "=git diff --stat --outpu=x"),
    ("shell_execute", "git branch -D main", "=git branch -D main"),
    ("shell_execute", "git commit -m x", "=git commit -m x"),
    ("shell_execute", "pip list --outdated", "pip list *"),
    ("shell_execute", "pip list --log x", "=pip list --log x"),
    ("shell_execute", "pip list --python ./x", "=pip list --python ./x"),
    ("shell_execute", "cargo check", "=cargo check"),
    ("shell_execute", "cargo tree --config x", "=cargo tree --config x"),
    ("shell_execute", "npm audit fix", "=npm audit fix"),
    ("shell_execute", "ls -l", "=ls -l"),
    ("shell_execute", "git", "=git"),
    ("shell_execute", "rm -rf /", "=rm -rf /"),
    ("shell_execute", "rm build", "=rm build"),
    ("shell_execute", "curl example", "=curl example"),
    ("shell_execute", "python train", "=python train"),
    ("shell_execute", "docker run ubuntu", "=docker run ubuntu"),
    ("shell_execute", "npm run build", "=npm run build"),
    ("shell_execute", "git config x", "=git config x"),
    ("shell_execute", "git push", "=git push"),
    ("shell_execute", "git status; ls", "=git status; ls"),
    ("shell_execute", "echo $HOME", "=echo $HOME"),
    ("file_write", "docs/a/b.md", "docs/a/*"),
    ("file_write", "b.md", "=b.md"),
    ("file_write", "*/b.md", "=*/b.md"),
    ("file_write", "=docs/b.md", "==docs/b.md"),
    ("web_fetch", "https://a.org/b", "https://a.org/*"),
    ("web_fetch", "https://a.org@b.org/", "=https://a.org@b.org/"),
    ("batch_fetch", ["https://a.org/b", "https://a.org/c"], "https://a.org/*"),
    ("batch_fetch", ["https://a.org/", "https://b.org/"], '=["https://a.org/","https://b.org/"]'),
    ("say", "hello", "*"),
]


@pytest.mark.parametrize(("name", "given", "usual"), USUAL, ids=str)
def test_always_allows_that_call_and_no_other_program_folder_or_host(
    name: str, given: Any, usual: str
) -> None:
    assert judge_call([], given, name).usual == usual
    assert judge_call([f"ask {name}(*)", f"allow {name}({usual})"], given, name).action == "allow"


def test_no_pattern_makes_a_match_slow() -> None:
    began = time.monotonic()
    rules = [f"deny {'* a ' * 18}* b{number}" for number in range(200)]
    assert judge_call(rules, "xargs " + "a " * 290).action == "ask"
    many = [f"deny *a*b*c* ?x {number}" for number in range(200)]
    lists = {TENANT: many, USER: many, PROJECT: many}
    assert judge_call(lists, ";".join(f"a{number}" for number in range(40))).action == "ask"
    rules = ["deny say(" + "*a" * 19 + f"b{number})" for number in range(200)]
    assert judge_call(rules, "a" * 100_000, "say").action == "allow"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "given",
    [
        "git grep -O'rm x' needle",
        "git grep --open-files-in-pager=rm needle",
        "git grep -f list",
        "git grep --ope=rm x",
        "git grep -niOrm x",
        "git grep -- x; git grep -Orm y",
    ],
)
def test_always_for_a_subcommand_covers_only_options_that_are_known_to_read(given: str) -> None:
    rules = ["ask shell_execute(*)", "allow shell_execute(git grep *)"]
    assert judge_call(rules, "git grep -in needle -- -O", "shell_execute").action == "allow"
    assert judge_call(rules, given, "shell_execute").action == "ask"


ACTS = [
    "git grep -O'touch x' y", "git -p log", "git bisect run ./x", "git submodule foreach ls",
    "git config alias.x !ls", "git difftool -x ls", "pip list --log x", "pip3 --lo=x list",
    "sort -o x y", "sort --compress-prog=./x y", "sort -uox y", "tar xf a --to-command=./x",
    "tar -xf a --checkpoint=1 --checkpoint-action=exec=./x", "tar xIf ./x a", "tar -cI ./x -f a b",
    "rg --pre ./x y", "sed -i s/a/b/ x", "sed -ni s/a/b/ x", "sed '1e touch x' y", "sed 's/a/b/w x' y",
    "sed -n 'w x' y", "sed s/a/touch/e x", "awk 'BEGIN{system(\"ls\")}'", "gawk '{print > \"x\"}' y",
    "awk -f x y", "less +!ls x", "man -P ./x ls", "curl -so x http://a/", "curl -K x", "wget -O x http://a/",
    "wget --execute=robots=off http://a/", "vim -es x", "fd -x ls", "zip -T --unzip-command=./x a.zip b",
]  # fmt: skip
LOOKS = [
    "git grep -n y", "git log -3", "git commit -m x", "pip list", "sort -u x", "tar tf a", "tar xzf a",
    "rg needle src", "sed -n 1,5p x", "sed s/red/blue/g x", "awk '{print $1}' x", "less x", "man ls",
    "curl -fsSL http://a/", "wget http://a/", "ls -lo", "fd needle",
]  # fmt: skip


@pytest.mark.parametrize("given", ACTS)
def test_no_pattern_allows_options_with_which_a_program_executes_or_writes(given: str) -> None:
    pattern = f"{given.split()[0]} *"
    verdict = judge_call([f"allow shell_execute({pattern})"], given, "shell_execute")
    assert (verdict.action, verdict.decided_by) == ("ask", "not_understood")
    assert judge_call(["allow shell_execute(*)"], given, "shell_execute").action == "allow"


@pytest.mark.parametrize("given", LOOKS)
def test_a_rule_written_by_a_user_for_a_program_applies_literally(given: str) -> None:
    pattern = f"{given.split()[0]} *"
    assert judge_call([f"allow shell_execute({pattern})"], given, "shell_execute").action == "allow"
