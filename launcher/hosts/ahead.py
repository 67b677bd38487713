"""Makes the imports that a program begins with, then waits for the word to be that program.

    python ahead.py DESCRIPTOR SCRIPT | -m MODULE

It is a program of its own that runs on a host, beside the process whose successor it may become;
`standby` starts it. Nothing of the user's own code runs ahead: of the script and the modules in its
working directory only the import statements are read, in the order in which they would be executed,
up to the first statement that does more than to import, to define or to name a constant, since that
might change what later imports do. An import that turns out to depend on what is not yet known, or
whose packages have changed since, makes it useless: then, and whenever anything else is not as it
would be without it, it becomes the program by execve(2), as if it had just been started.

On the descriptor, a socket, comes the order: one byte with the program's output as a descriptor,
then JSON up to the end. Without an order it ends.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import runpy
import socket
import sys
import time
import types
from collections.abc import Iterator, Sequence
from importlib.machinery import SourceFileLoader, all_suffixes
from pathlib import Path

NAME, READY = "standby", "standby, ready"  # in ps and top, until it is the program
# What may differ from one attempt or trial to the next; of other variables each counts.
LATER_PREFIX = "LAUNCHER_"
LATER = frozenset(
    (
        *("JAX_COORDINATOR_PORT", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
        *("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT"),
        *("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_PORT"),
    )
)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass)
ACTS = (ast.Await, ast.NamedExpr)
HARMLESS = frozenset(  # what constants are made with
    (
        *("dict", "float", "frozenset", "int", "list", "range", "set", "tuple"),
        *("Path", "TypeVar", "logging.getLogger", "namedtuple", "re.compile"),
    )
)


class Unfit(BaseException):
    """This process cannot be what a new one would be. No Exception: no library is to handle it."""


class Own:
    """The modules of the working directory: found, never run."""

    def __init__(self, folder: str, path: Sequence[str]) -> None:
        root = Path(folder).resolve()
        self.folders = [p for p in path if Path(p).resolve().is_relative_to(root)]

    def source(self, name: str) -> Path | None:
        """The file of a module; None if it is not one of these."""
        for folder in self.folders:
            path = Path(folder, *name.split("."))
            for suffix in all_suffixes():  # not of sources alone
                for file in (path / f"__init__{suffix}", path.with_name(f"{path.name}{suffix}")):
                    if file.is_file():
                        return file
        return None

    def sources(self, name: str) -> list[Path]:
        """Of a module and the packages that it is in, in the order in which they are run."""
        parts = name.split(".")
        found = (self.source(".".join(parts[: count + 1])) for count in range(len(parts)))
        return [file for file in found if file]

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """As the first of sys.meta_path: no package is to run them either."""
        if path is None and self.source(name):
            raise Unfit(f"a package imports {name}, which is the program's own")


class Noting(type(os.environ)):  # type: ignore[misc]
    """The environment, while what is not known yet must not be read."""

    def __getitem__(self, key: str) -> str:
        if is_later(key):
            raise Unfit(f"a package reads {key} when it is imported")
        return str(super().__getitem__(key))


def is_later(variable: str) -> bool:
    return variable in LATER or variable.startswith(LATER_PREFIX)


class Reader:
    """Reads which packages a program imports before it does anything else."""

    def __init__(self, own: Own) -> None:
        self.own = own
        self.seen: set[Path] = set()
        self.is_over = False  # something else has come

    def imports(self, file: Path) -> Iterator[ast.stmt]:
        self.seen.add(file)
        for statement in ast.parse(file.read_bytes()).body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                yield from self._imported(statement)
            else:
                self.is_over = self.is_over or not is_inert(statement)
            if self.is_over:
                return

    def _imported(self, statement: ast.Import | ast.ImportFrom) -> Iterator[ast.stmt]:
        """The statement itself, or what own modules import."""
        modules = names(statement)
        files = [self.own.sources(module) for module in modules]
        if not any(files):
            self.is_over = not modules
            yield from [statement] if modules else []
        elif not all(files[:1] if isinstance(statement, ast.ImportFrom) else files):
            self.is_over = True  # both kinds in one statement
        else:
            for file in (file for found in files for file in found if file not in self.seen):
                if not self.is_over:
                    yield from self.imports(file)


def names(statement: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that it may run; none when that depends on where it stands."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if statement.level or not statement.module:
        return []
    return [statement.module, *(f"{statement.module}.{a.name}" for a in statement.names)]


def is_inert(statement: ast.stmt) -> bool:
    """Whether it only defines something, or names a constant."""
    match statement:
        case ast.Expr(value=ast.Constant()) | ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[]):
            return True
        case ast.Assign(targets=targets):
            named = all(isinstance(target, ast.Name) for target in targets)
        case ast.AnnAssign(target=target):
            named = isinstance(target, ast.Name)
        case _:
            return isinstance(statement, DEFINITIONS)
    return named and not any(acts(node) for node in ast.walk(statement))


def acts(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) not in HARMLESS
    return isinstance(node, ACTS)


def make(target: list[str], own: Own) -> None:
    """All of the imports. Raises Unfit."""
    if mine := [name for name in sys.modules if "." not in name and own.source(name)]:
        raise Unfit(f"{mine[0]} is the program's own")  # and the one imported here is another
    files = own.sources(target[1]) if target[0] == "-m" else [Path(target[0])]
    reader = Reader(own)
    sys.meta_path.insert(0, own)
    plain, os.environ.__class__ = os.environ.__class__, Noting
    try:
        for statement in (each for file in files for each in reader.imports(file)):
            exec(compile(ast.Module([statement], []), "", "exec", dont_inherit=True), {})
    except Exception as error:
        raise Unfit(repr(error)) from error
    finally:
        os.environ.__class__ = plain
        sys.meta_path.remove(own)


def require_unchanged(since: float, own: Own) -> None:
    """That what has been imported is what is installed. Raises Unfit."""
    files = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    folders = {folder for folder in sys.path if folder not in own.folders}
    for path in files | folders:
        if path and os.path.exists(path) and os.stat(path).st_ctime > since:
            raise Unfit(f"{path} has changed")


def await_order(descriptor: int) -> tuple[list[str], dict[str, str], int]:
    """The argv, the environment and the output; ends this process if none comes."""
    with socket.socket(fileno=descriptor) as channel:
        word, descriptors, *_ = socket.recv_fds(channel, 1, 1)
        if not word:
            os._exit(0)
        with channel.makefile("rb") as rest:
            order = json.load(rest)
    return order["argv"], order["env"], descriptors[0]


def call_oneself(name: str, badness: str) -> None:
    """For those who look at processes, and for the kernel when it looks for one to kill."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)
        Path("/proc/self/oom_score_adj").write_text(badness)


def take_output(output: int, said: bool) -> None:
    """Write there from now on; first what the imports have said, if they count."""
    sys.stdout.flush()
    sys.stderr.flush()
    if said:
        os.lseek(1, 0, os.SEEK_SET)
        while chunk := os.read(1, 65_536):
            os.write(output, chunk)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


def become(argv: list[str], env: dict[str, str]) -> None:
    """The program, as Python would run it."""
    for name in [name for name in os.environ if is_later(name) and name not in env]:
        del os.environ[name]
    os.environ.update({name: value for name, value in env.items() if is_later(name)})
    sys.orig_argv, sys.argv = argv, argv[1:]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(module).update(__builtins__=builtins, __annotations__={})
    try:
        if argv[1] == "-m":
            sys.argv = argv[2:]
            runpy._run_module_as_main(argv[2])  # type: ignore[attr-defined]
        else:
            file = os.path.abspath(argv[1])
            loader = SourceFileLoader("__main__", file)
            vars(module).update(__file__=file, __loader__=loader, __cached__=None)
            text = Path(file).read_bytes()
            exec(compile(text, file, "exec", dont_inherit=True), vars(module))
    except Exception as error:  # told as if this function were not there
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def main(descriptor: int, target: list[str]) -> None:
    os.set_inheritable(descriptor, False)
    started, badness = time.time(), Path("/proc/self/oom_score_adj").read_text()
    call_oneself(NAME, "1000")
    sys.argv = target
    if not sys.flags.safe_path:
        script = os.path.realpath(target[0])
        sys.path[0] = os.getcwd() if target[0] == "-m" else os.path.dirname(script)
    own = Own(os.getcwd(), sys.path)
    unfit: BaseException | None = None
    try:
        make(target, own)
    except BaseException as error:
        unfit = error
    call_oneself(READY, "1000")
    argv, env, output = await_order(descriptor)
    call_oneself(os.path.basename(argv[0])[:15], badness)
    try:
        if unfit:
            raise unfit
        require_unchanged(started, own)
    except BaseException:
        take_output(output, said=False)
        os.execvpe(argv[0], argv, env)
    take_output(output, said=True)
    become(argv, env)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
