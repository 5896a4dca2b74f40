"""What this package believes of the ABI against the file that is generated from the header."""

import ast
import dataclasses
import enum
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SOURCE

import waveinfer
from waveinfer._abi import ffi
from waveinfer._library import lib
from waveinfer._values import read, result

MANIFEST = (SOURCE / "tests" / "abi" / "waveinfer-2.abi.txt").read_text().splitlines()


def lines(kind: str) -> Iterator[list[str]]:
    return (line.split()[1:] for line in MANIFEST if line.startswith(kind + " "))


def test_every_symbol_of_the_manifest_is_declared_and_there() -> None:
    names = [name for (name,) in lines("symbol")]
    assert len(names) > 70
    for name in names:
        assert ffi.typeof(getattr(lib, name)).kind == "function"


def test_every_function_is_used_by_the_package() -> None:
    """None is left out of the binding, retain apart, which Python's references replace."""
    files = Path(waveinfer.__file__).parent.glob("*.py")
    source = "".join(path.read_text() for path in files if path.name != "_abi.py")
    unused = {name for (name,) in lines("symbol") if f"lib.{name}" not in source}
    assert unused == {f"wi_{each}_retain" for each in ("cancel", "kv", "model", "runtime", "session")}


def test_structs_have_the_manifest_s_sizes_and_alignments() -> None:
    structs = list(lines("struct"))
    assert len(structs) > 20
    for name, _, size, _, align in structs:
        assert (ffi.sizeof(name), ffi.alignof(name)) == (int(size), int(align)), name


def test_fields_have_the_manifest_s_offsets_and_sizes() -> None:
    seen: dict[str, set[str]] = {}
    for name, _, offset, _, size in lines("field"):
        struct, field = name.split(".")
        kind = dict(ffi.typeof(struct).fields)[field]
        assert (kind.offset, ffi.sizeof(kind.type)) == (int(offset), int(size)), name
        seen.setdefault(struct, set()).add(field)
    for struct, fields in seen.items():
        assert {name for name, _ in ffi.typeof(struct).fields} == fields, struct


ENUMS: dict[str, type[enum.IntEnum] | type[enum.IntFlag]] = {
    "WI_E_": waveinfer.Status,
    "WI_LOG_": waveinfer.LogLevel,
    "WI_HUGE_PAGES_": waveinfer.HugePages,
    "WI_BIND_": waveinfer.BindThreads,
    "WI_BUFFER_": waveinfer.BufferManager,
    "WI_PRECISION_": waveinfer.Precision,
    "WI_WEIGHTS_": waveinfer.Weights,
    "WI_TOKEN_": waveinfer.TokenFlag,
    "WI_KV_": waveinfer.KvType,
    "WI_PREFIX_REUSE_": waveinfer.PrefixReuse,
    "WI_EVENT_": waveinfer.EventKind,
    "WI_TASK_": waveinfer.TaskState,
}
FLAGS = {
    "WI_TOKENIZE_ADD_BOS": 1,
    "WI_TOKENIZE_PARSE_SPECIAL": 2,
    "WI_DETOKENIZE_KEEP_SPECIAL": 1,
    "WI_CHAT_ADD_GENERATION_PROMPT": 1,
    "WI_ABI_VERSION": waveinfer.ABI_VERSION,
    "WI_OK": waveinfer.Status.OK,
}


def test_values_are_the_manifest_s_and_none_is_missing() -> None:
    found = {f"{prefix}{each.name}": each.value for prefix, kind in ENUMS.items() for each in kind} | FLAGS
    del found["WI_E_OK"]
    assert found == {name: int(value) for name, value in lines("value")}


@pytest.mark.parametrize(
    ("struct", "kind"),
    [
        ("wi_device_info", waveinfer.DeviceInfo),
        ("wi_policy_info", waveinfer.PolicyInfo),
        ("wi_runtime_stats", waveinfer.RuntimeStats),
        ("wi_model_info", waveinfer.ModelInfo),
        ("wi_memory_plan", waveinfer.MemoryPlan),
        ("wi_session_stats", waveinfer.SessionStats),
        ("wi_task_info", waveinfer.TaskInfo),
        ("wi_policy_params", waveinfer.Policy),
    ],
)
def test_dataclasses_have_every_field(struct: str, kind: type) -> None:
    fields = {name for name, _ in ffi.typeof(struct).fields if not name.startswith("reserved")}
    assert {field.name for field in dataclasses.fields(kind)} == fields - {"struct_size"}


def test_options_name_every_field() -> None:
    fields = {name for name, _ in ffi.typeof("wi_session_params").fields if not name.startswith("reserved")}
    assert set(waveinfer.SessionOptions.__annotations__) == fields - {"struct_size"}


def documented(kind: str) -> dict[str, str]:
    """Of a class of params.py: what is said of each field, in the string after it."""
    source = ast.parse((Path(waveinfer.__file__).parent / "params.py").read_text())
    body = next(each.body for each in source.body if isinstance(each, ast.ClassDef) and each.name == kind)
    return {
        field.target.id: str(said.value.value)
        for field, said in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant)
    }


def defaults(said: dict[str, str]) -> dict[str, str]:
    found = {name: re.search(r"\b0: (\d+(?:\.\d+)?)", text) for name, text in said.items()}
    return {name: each[1] for name, each in found.items() if each}


def test_defaults_of_a_policy_are_the_header_s() -> None:
    header = (SOURCE / "include" / "waveinfer.h").read_text()
    body = header.split("typedef struct wi_policy_params {")[1].split("} wi_policy_params;")[0]
    field = r"^  (?:/\*((?:(?!\*/).)*)\*/\n  )?\w[\w ]*[ *]+(\w+);(?: */\*(.*?)\*/)?$"
    found = re.findall(field, body, re.DOTALL | re.MULTILINE)
    said = {name: above or beside for above, name, beside in found}
    assert said.keys() == {name for name, _ in ffi.typeof("wi_policy_params").fields}
    assert len(defaults(said)) == 8
    assert defaults(documented("Policy")) == defaults(said)


def test_defaults_of_a_session_s_options_are_zero() -> None:
    kinds = {"kv_type": waveinfer.KvType, "prefix_reuse": waveinfer.PrefixReuse}
    said = documented("SessionOptions")
    for name, kind in kinds.items():
        assert f"Default: {kind(0).name}." in said[name]


def test_statuses_have_the_library_s_names() -> None:
    for status in waveinfer.Status:
        assert waveinfer.status_name(status) == status.name
    for number in (-1, 14, 2**40, -(2**40)):
        assert waveinfer.status_name(number) == "UNKNOWN"


def test_everything_public_says_what_it_is() -> None:
    """Classes, functions and constants, and all that classes have; of values, in the string after them."""
    silent: list[str] = []

    def look(body: list[ast.stmt], where: str, names: set[str] | None) -> None:
        for statement, after in itertools.zip_longest(body, body[1:]):
            told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name, told = statement.name, ast.get_docstring(statement) is not None
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name = statement.targets[0].id
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name = statement.target.id
            else:
                continue
            public = not name.startswith("_") if names is None else name in names
            if public and not told:
                silent.append(f"{where}.{name}")
            if public and isinstance(statement, ast.ClassDef):
                look(statement.body, f"{where}.{name}", None)

    seen = 0
    for path in Path(waveinfer.__file__).parent.glob("*.py"):
        if path.name != "_abi.py":
            seen += 1
            look(ast.parse(path.read_text()).body, path.stem, set(waveinfer.__all__))
    assert seen > 10
    # What a derived error has of its own is told of by `Error`.
    assert [name for name in silent if not re.fullmatch(r"errors\.\w+Error\.status", name)] == []


def test_each_status_has_a_class() -> None:
    classes = {kind.status for kind in all_errors(waveinfer.Error)}
    assert set(waveinfer.Status) - {waveinfer.Status.OK} == classes


def all_errors(kind: type[waveinfer.Error]) -> list[type[waveinfer.Error]]:
    return [kind] + [found for each in kind.__subclasses__() for found in all_errors(each)]


def test_the_version_is_the_library_s() -> None:
    assert waveinfer.__version__ == ffi.string(lib.wi_version()).decode()
    assert lib.wi_abi_version() == waveinfer.ABI_VERSION


def test_a_kind_of_event_that_is_unknown_ends_an_answer_too() -> None:
    kind = waveinfer.EventKind(99)
    assert kind == 99
    assert kind != waveinfer.EventKind.TOKEN
    assert kind.name == "UNKNOWN_99"


def test_a_state_or_status_that_is_unknown_is_told_by_its_number() -> None:
    told = result("wi_task_info")
    told.state, told.status = 99, 98
    info = read(told, waveinfer.TaskInfo)
    assert (info.state, info.status) == (99, 98)
    told.state, told.status = waveinfer.TaskState.FAILED, waveinfer.Status.BUDGET
    info = read(told, waveinfer.TaskInfo)
    assert info.state is waveinfer.TaskState.FAILED
    assert info.status is waveinfer.Status.BUDGET
