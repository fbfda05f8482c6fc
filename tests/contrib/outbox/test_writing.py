"""Rows of the outbox are written in the application's transaction, whatever its driver is."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing

import aiosqlite
import apsw
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from eventmq import SerializationError, SettingsError, chain
from eventmq.sdk import parse_headers
from eventmq_contrib import outbox


def sqlalchemy_url(shop):
    scheme, _, rest = shop.url.partition("://")
    return f"{ {'postgresql': 'postgresql+psycopg', 'mysql': 'mysql+pymysql'}.get(scheme, scheme) }://{rest}"


def test_a_row_is_committed_and_rolled_back_with_the_transaction(shop, app):
    connection = shop.connect()
    add = app.tasks["add"]
    shop.order(connection, 1)
    outbox.delay(connection, add, 1, 2)
    connection.rollback()
    assert [] == shop.rows()
    shop.order(connection, 1)
    job = outbox.delay(connection, add, 1, b=2)
    assert [] == shop.rows()
    connection.commit()
    assert [(job.id, "")] == shop.rows()


@pytest.mark.parametrize("kind", ["session", "scoped", "connection", "raw"])
def test_sessions_and_connections_of_sqlalchemy_write(shop, app, kind):
    engine = sa.create_engine(sqlalchemy_url(shop))
    make = {
        "session": lambda: Session(engine),
        "scoped": scoped_session(sessionmaker(engine)),
        "connection": engine.connect,
        "raw": engine.raw_connection,
    }[kind]
    with closing(make()) as session:
        outbox.delay(session, app.tasks["add"], 1, 2)
        session.rollback()
        job = outbox.delay(session, app.tasks["add"], 1, 2)
        session.commit()
    engine.dispose()
    assert [(job.id, "")] == shop.rows()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("kind", ["session", "connection"])
def test_asynchronous_sessions_and_connections_of_sqlalchemy_write(database_url, app, kind, driver):
    url = database_url.replace("postgresql://", f"postgresql+{driver}://")

    async def write():
        engine = create_async_engine(url)
        async with AsyncSession(engine) if kind == "session" else engine.connect() as session:
            for statement in outbox.DDL["postgresql"]:
                await session.execute(sa.text(statement))
            await session.commit()
            await outbox.adelay(session, app.tasks["add"], 1, 2)
            await session.rollback()
            job = await outbox.adelay(session, app.tasks["add"], 1, 2)
            await session.commit()
            rows = await session.execute(sa.text("SELECT job_id FROM eventmq_outbox"))
            assert [(job.id,)] == rows.fetchall()
            with pytest.raises(SettingsError, match=r"use await outbox.asend"):
                outbox.delay(session, app.tasks["add"], 1, 2)
        await engine.dispose()

    asyncio.run(write())


def test_an_asynchronous_session_on_sqlite_writes(tmp_path, app):
    async def write():
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
        async with AsyncSession(engine) as session:
            for statement in outbox.DDL["sqlite"]:
                await session.execute(sa.text(statement))
            job = await outbox.asend(session, app.tasks["add"].s(1, 2), key="k")
            rows = await session.execute(sa.text("SELECT job_id, ordering_key FROM eventmq_outbox"))
            assert [(job.id, "k")] == rows.fetchall()
        await engine.dispose()

    asyncio.run(write())


def test_an_asynchronous_connection_of_psycopg_writes(database_url, app):
    async def write():
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            for statement in outbox.DDL["postgresql"]:
                await connection.execute(statement)
            job = await outbox.adelay(connection, app.tasks["add"], 1, 2)
            rows = await connection.execute("SELECT job_id FROM eventmq_outbox")
            assert [(job.id,)] == await rows.fetchall()

    asyncio.run(write())


def test_aiosqlite_and_apsw_write(tmp_path, app):
    path = str(tmp_path / "shop.db")
    with closing(apsw.Connection(path)) as connection:
        for statement in outbox.DDL["sqlite"]:
            connection.execute(statement)
        with connection:
            first = outbox.delay(connection, app.tasks["add"], 1, 2)

    async def write():
        async with aiosqlite.connect(path) as connection:
            job = await outbox.adelay(connection, app.tasks["add"], 1, 2)
            await connection.commit()
            return job

    second = asyncio.run(write())
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT job_id FROM eventmq_outbox ORDER BY seq").fetchall()
    assert [(first.id,), (second.id,)] == rows


def test_wrong_arguments_are_errors_in_the_transaction_and_write_nothing(shop, app):
    connection, add = shop.connect(), app.tasks["add"]
    with pytest.raises(TypeError):
        outbox.delay(connection, add, 1)
    with pytest.raises(SerializationError):
        outbox.delay(connection, app.tasks["keep"], object())
    for key in ("k" * 256, 7, "a\0b"):
        with pytest.raises(SettingsError, match="at most 255 characters"):
            outbox.send(connection, add.s(1, 2), key=key)
    connection.commit()
    assert [] == shop.rows()


@pytest.mark.parametrize("wrong", [object(), 7, None, sa.create_engine("sqlite://")])
def test_what_is_no_connection_is_refused_with_the_kinds_that_are_known(app, wrong):
    with pytest.raises(SettingsError, match="not a connection or session of psycopg, sqlite3"):
        outbox.delay(wrong, app.tasks["add"], 1, 2)


def test_a_connection_that_blocks_is_refused_by_the_asynchronous_functions(app):
    with closing(sqlite3.connect(":memory:")) as connection:
        with pytest.raises(SettingsError, match=r"blocks: use outbox.send\(\) in a thread"):
            asyncio.run(outbox.adelay(connection, app.tasks["add"], 1, 2))
        with pytest.raises(sqlite3.OperationalError, match="no such table: eventmq_outbox"):
            outbox.delay(connection, app.tasks["add"], 1, 2)


def test_times_count_from_the_write(shop, app):
    """A countdown in the row would begin when the relay sends it."""
    connection, before = shop.connect(), time.time()
    signature = app.tasks["add"].options(countdown=60, expires=90, priority=7).s(1, 2)
    outbox.send(connection, signature)
    connection.commit()
    [(text,)] = shop.database.execute("SELECT headers FROM eventmq_outbox")
    headers = parse_headers(text)
    assert 0.0 == headers.countdown
    assert before + 60 <= headers.eta <= time.time() + 60
    assert before + 90 <= headers.expires <= time.time() + 90
    assert 7 == headers.priority


def test_the_id_of_a_call_is_the_id_of_the_row_and_a_graph_is_one_row(shop, app):
    connection, add = shop.connect(), app.tasks["add"]
    outbox.send(connection, add.options(job_id="mine").s(1, 2))
    job = outbox.send(connection, chain(add.s(1, 2), add.s(3)))
    connection.commit()
    assert [("mine", ""), (job.root, "")] == shop.rows()
