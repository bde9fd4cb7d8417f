# SPDX-License-Identifier: Apache-2.0
"""A server's history as pandas frames, and into the trackers of others."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import pathlib
import re
import sqlite3
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterator, Protocol, Union

if TYPE_CHECKING:
    import pandas

__all__ = ["History", "history", "track"]

Path = Union[str, "os.PathLike[str]"]
LOCK_WAIT_S = 10.0
# A view is a program, and one in somebody else's history may have no end. Reading may take so many
# steps of SQLite's machine: ten seconds or so, and far more than the figures of long runs take.
STEPS_MAX = 1_000_000_000
STEPS_LOOK = 1_000_000


@dataclass(frozen=True)
class History:
    """Frames of all runs of a server; the column run_id tells these apart. Times are UTC, seconds
    are wall-clock, bytes are bytes on the wire.

    runs: one row for each run: its number as id, model, strategy and codec, and all its settings as
        JSON in config_json.
    rounds: each finished round: when, seconds, clients_offered and clients_accepted, bytes_up and
        bytes_down, train_loss, model_digest.
    tasks: each client asked to train: what became of it, and why; bytes, seconds, steps, loss.
    evaluations: each metric of each version: the mean over those who measured it.
    metrics: the same for each client that measured.
    best: the best version of each run by its main metric, with the metric's name and the value.
        `fl-server export --best` writes its model.
    events: what the server reported."""

    runs: pandas.DataFrame
    rounds: pandas.DataFrame
    tasks: pandas.DataFrame
    evaluations: pandas.DataFrame
    metrics: pandas.DataFrame
    best: pandas.DataFrame
    events: pandas.DataFrame


# As fl-server judges (server/history/best_version.hpp): the earliest of equally good versions.
BEST = """
SELECT run_id, version, name AS metric, value FROM (
  SELECT run_id, version, name, value, row_number() OVER (
      PARTITION BY run_id
      ORDER BY iif(ifnull(k.lower_is_better, name = 'loss'), value, -value), version) AS place
  FROM evaluation JOIN run_metric USING (run_id, name)
    LEFT JOIN metric_kind AS k USING (run_id, name)
  WHERE abs(value) < 9e999)
WHERE place = 1 ORDER BY run_id
"""

FRAMES = {
    "runs": "SELECT *, json_extract(nullif(config_json, ''), '$.strategy') AS strategy,"
    " json_extract(nullif(config_json, ''), '$.codec') AS codec FROM run ORDER BY id",
    "rounds": "SELECT * FROM round_summary ORDER BY run_id, round",
    "tasks": "SELECT * FROM task ORDER BY id",
    "evaluations": "SELECT * FROM evaluation ORDER BY run_id, version, name",
    "metrics": "SELECT * FROM metric ORDER BY run_id, version, client, name",
    "best": BEST,
    "events": "SELECT * FROM event ORDER BY id",
}


def history(state: Path = "fl-state") -> History:
    """Reads the history in a server's state folder. The server may be running. Where nothing can be
    written, on a read-only mount or in a colleague's folder, it must have ended."""
    import pandas

    frames = {}
    with _database(state) as database:
        for name, sql in FRAMES.items():
            with _limited(database):
                frames[name] = pandas.read_sql_query(sql, database)
    for frame in frames.values():
        for column in frame.columns:
            if column == "at" or column.endswith("_at"):
                frame[column] = pandas.to_datetime(frame[column], unit="s", utc=True)
    return History(**frames)


@contextlib.contextmanager
def _database(state: Path) -> Iterator[sqlite3.Connection]:
    file = pathlib.Path(state) / "history.sqlite"
    if not file.is_file():
        raise FileNotFoundError(f"{os.fspath(state)} is no state folder of fl-server: no {file}")
    with contextlib.closing(_opened(file)) as database:
        yield database


def _opened(file: pathlib.Path) -> sqlite3.Connection:
    uri = file.absolute().as_uri() + "?mode=ro"
    try:
        return _connected(uri)
    except sqlite3.OperationalError as error:
        wal = file.with_name(file.name + "-wal")
        if "unable to open" not in str(error):
            raise
        if wal.exists() and wal.stat().st_size > 0:
            raise OSError(
                f"{file}: {error}. Where nothing can be written, only the history of a server that "
                "has ended can be read; otherwise copy the folder to a place where you may write"
            ) from error
    # Even to read a database with a WAL, SQLite makes files beside it, which a read-only place forbids.
    # Without a WAL all is in the database file, and nobody writes to it.
    return _connected(uri + "&immutable=1")


def _connected(uri: str) -> sqlite3.Connection:
    database = sqlite3.connect(uri, uri=True, timeout=LOCK_WAIT_S)
    try:
        database.execute("SELECT count(*) FROM sqlite_master")  # Connecting alone opens nothing.
    except BaseException:
        database.close()
        raise
    return database


@contextlib.contextmanager
def _limited(database: sqlite3.Connection) -> Iterator[None]:
    """Ends queries in it that together take more than STEPS_MAX steps, with ValueError."""
    looks = 0

    def is_too_much() -> bool:
        nonlocal looks
        looks += 1
        return looks > STEPS_MAX // STEPS_LOOK

    database.set_progress_handler(is_too_much, STEPS_LOOK)
    try:
        yield
    except Exception as error:
        if looks <= STEPS_MAX // STEPS_LOOK:
            raise
        raise ValueError(
            f"reading this history took more than {STEPS_MAX} steps of SQLite and was given up: its "
            "views may not be those of fl-server"
        ) from error
    finally:
        database.set_progress_handler(None, 0)


class Sink(Protocol):
    """Where figures go."""

    def settings(self, settings: dict[str, Any]) -> None:
        """The settings of the run, once."""

    def log(self, values: dict[str, float], round: int) -> None:
        """The figures of a round or version."""

    def close(self) -> None:
        """Nothing more comes."""


def track(
    state: Path,
    target: str | Sink,
    *,
    run: int | None = None,
    follow: bool = True,
    pause_s: float = 2.0,
) -> None:
    """Copies the figures of a run into an experiment tracker, round by round.

    state: the server's state folder; the server may be running.
    target: "tensorboard:DIR", "mlflow:URI", "wandb" or "wandb:PROJECT", or an object like Sink.
    run: which run, as its id in history().runs; None: the newest.
    follow: go on until the run is over; else copy what there is.
    pause_s: between two looks at the history."""
    with _database(state) as database:
        with _limited(database):
            run, key, model, config = _chosen(database, state, run)
    sink = _sink(target, f"{model}-{key}") if isinstance(target, str) else target
    try:
        sink.settings({"model": model, **_flat(json.loads(config or "{}"))})
        _follow(state, run, sink, follow, pause_s)
    finally:
        sink.close()


def _chosen(
    database: sqlite3.Connection, state: Path, run: int | None
) -> tuple[int, str, str, str]:
    """The run's id, key, model and settings."""
    if run is None:
        newest = database.execute("SELECT max(id) FROM run").fetchone()[0]
        if newest is None:
            raise ValueError(f"{os.fspath(state)} has no run yet")
        run = int(newest)
    found = database.execute("SELECT key, model, config_json FROM run WHERE id = ?", [run])
    row = found.fetchone()
    if row is None:
        raise ValueError(f"{os.fspath(state)} has no run {run}")
    return run, *row


def _follow(folder: Path, run: int, sink: Sink, follow: bool, pause_s: float) -> None:
    logged: dict[tuple[int, str], float] = {}
    while True:
        # Opened anew, because one that was opened as unchanging never changes.
        with _database(folder) as database, _limited(database):
            # Read first, so that nothing is missed that is written between the two.
            state = database.execute("SELECT state FROM run WHERE id = ?", [run]).fetchone()[0]
            figures = _figures(database, run)
        for round, values in figures.items():
            # An evaluation may come after its round, and grow as more clients report.
            new = {name: v for name, v in values.items() if logged.get((round, name)) != v}
            if new:
                sink.log(new, round)
                logged.update({(round, name): value for name, value in new.items()})
        if not follow or state in ("finished", "stopped"):
            return
        time.sleep(pause_s)


def _figures(database: sqlite3.Connection, run: int) -> dict[int, dict[str, float]]:
    """{round: {name: value}}; version r is what round r made."""
    figures: dict[int, dict[str, float]] = {}
    columns = "seconds, clients_accepted, bytes_up, bytes_down, train_loss"
    rounds = f"SELECT round, {columns} FROM round_summary WHERE run_id = ? ORDER BY round"
    for round, *values in database.execute(rounds, [run]):
        named = zip(columns.split(", "), values)
        figures[round] = {name: float(value) for name, value in named if value is not None}
    evaluations = "SELECT version, name, value FROM evaluation WHERE run_id = ? ORDER BY version"
    for version, name, value in database.execute(evaluations, [run]):
        if value is not None and math.isfinite(value):
            figures.setdefault(version, {})[f"eval_{name}"] = float(value)
    return dict(sorted(figures.items()))


def _flat(settings: dict[str, Any], before: str = "") -> dict[str, Any]:
    """{"optimizer": {"name": "sgd"}} becomes {"optimizer.name": "sgd"}."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{before}{name}."))
        else:
            flat[before + name] = value
    return flat


def _sink(target: str, name: str) -> Sink:
    kind, _, where = target.partition(":")
    makers: dict[str, Callable[[str, str], Sink]] = {
        "tensorboard": _TensorBoard, "mlflow": _MLflow, "wandb": _Wandb,
    }  # fmt: skip
    if kind not in makers or (kind != "wandb" and not where):
        raise ValueError(
            f"'{target}' is none of: tensorboard:DIR, mlflow:URI, wandb, wandb:PROJECT"
        )
    return makers[kind](where, name)


class _TensorBoard:
    def __init__(self, folder: str, name: str):
        try:
            writers: Any = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            writers = importlib.import_module("tensorboardX")
        self._writer = writers.SummaryWriter(os.path.join(folder, name))

    def settings(self, settings: dict[str, Any]) -> None:
        rows = "".join(f"| {name} | {value} |\n" for name, value in settings.items())
        self._writer.add_text("settings", "| setting | value |\n|---|---|\n" + rows)

    def log(self, values: dict[str, float], round: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _mlflow_name(name: str) -> str:
    """The name with "_" for characters that MLflow allows in none."""
    return re.sub(r"[^\w./ -]", "_", name)


class _MLflow:
    def __init__(self, uri: str, name: str):
        import mlflow

        self._mlflow: Any = mlflow
        mlflow.set_tracking_uri(uri)
        mlflow.start_run(run_name=name)

    def settings(self, settings: dict[str, Any]) -> None:
        self._mlflow.log_params({_mlflow_name(name): v for name, v in settings.items()})

    def log(self, values: dict[str, float], round: int) -> None:
        self._mlflow.log_metrics({_mlflow_name(n): v for n, v in values.items()}, step=round)

    def close(self) -> None:
        self._mlflow.end_run()


class _Wandb:
    def __init__(self, project: str, name: str):
        import wandb

        self._run: Any = wandb.init(project=project or "tributary", name=name)
        # An evaluation comes after later rounds at times: rounds are an axis of their own.
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def settings(self, settings: dict[str, Any]) -> None:
        self._run.config.update(settings)

    def log(self, values: dict[str, float], round: int) -> None:
        self._run.log({**values, "round": round})

    def close(self) -> None:
        self._run.finish()
