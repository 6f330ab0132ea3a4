"""Tier workers of tests that are told of jobs by name, with plain values."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import get_type_hints

from liftpy_server.tier.jobs.table import JOBS
from liftpy_server.tier.requests import UploadedObject
from liftpy_server.workers.requests import from_plain, to_plain

_NOTHING = {int: 0, bool: False, dict: {}, str: ""}


class PlainWorker:
    """Calls `answer(job, **arguments)`, whose result may leave out what does not matter.

    Attributes:
        told: Hears of parts of the job that was asked for last.
    """

    told = None

    async def call(self, request, told=None):
        self.told = told
        return result_of(request, await self.answer(request.job, **to_plain(request)))


def result_of(request, plain):
    """The typed result of a request; what is left out is 0, nothing, or None."""
    hints = get_type_hints(request.result)
    known = {}
    for each in fields(request.result):
        if each.name in plain:
            known[each.name] = plain[each.name]
        elif each.default is MISSING:
            kind = getattr(hints[each.name], "__origin__", hints[each.name])
            known[each.name] = [] if kind is tuple else _NOTHING.get(kind)
    return from_plain(request.result, to_plain(known))


def told(kind, arguments):
    """A request of a kind from the arguments that it knows."""
    names = {each.name for each in fields(kind)}
    return from_plain(kind, to_plain({name: value for name, value in arguments.items() if name in names}))


def plainly(kind, do):
    """A job as a function of where it works and its arguments, with plain values."""
    return lambda where, arguments: to_plain(do(where, told(kind, arguments)))


def do_plain(context, job, arguments):
    """Have a job done in this process, with plain values."""
    kind, do = JOBS[job]
    return plainly(kind, do)(context, arguments)


class PlainCalls:
    """A worker process that is told of jobs by name, with plain values."""

    def __init__(self, worker):
        self.worker = worker

    async def call(self, job, **arguments):
        return to_plain(await self.worker.call(told(JOBS[job].kind, arguments)))

    def __getattr__(self, name):
        return getattr(self.worker, name)


class Told(dict):
    """A request of any name, whose result is what comes."""

    result = dict
    part = UploadedObject

    def __init__(self, job, **arguments):
        super().__init__(arguments)
        self.job = job
