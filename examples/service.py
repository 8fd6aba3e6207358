"""A web service that runs programs of strangers, each in a sandbox of its own.

pip install fastapi uvicorn
IMAGE=python:3.12-slim uvicorn --app-dir examples service:app
curl -s localhost:8000/run -H 'content-type: application/json' -d '{"code": "print(6 * 7)"}'
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

import dockless
from dockless import aio

IMAGE = os.environ.get("IMAGE", "python:3.12-slim")
LIMITS: dockless.Options = {
    "profile": "untrusted",
    "memory": "256M",
    "cpus": 1,
    "pids": 64,
    "timeout": 5,
    "best_effort": True,  # where this host cannot limit memory, go on; leave it out on a server
}

app = FastAPI()
turn = asyncio.Semaphore(2 * (os.cpu_count() or 1))


class Program(BaseModel):
    code: str = Field(max_length=20_000, pattern=r"^[^\x00]*$")
    input: str = Field("", max_length=1_000_000)

    @property
    def command(self) -> list[str]:
        return ["python3", "-c", self.code]


class Answer(BaseModel):
    output: str
    errors: str
    ended: str
    exit_code: int
    seconds: float


@app.post("/run")
async def run(program: Program) -> Answer:
    """Run it to its end. What it writes beyond 64 KiB is dropped."""
    async with turn:
        result = await aio.run(
            IMAGE,
            program.command,
            input=program.input,
            capture_output=True,
            text=True,
            errors="replace",
            max_output="64K",
            **LIMITS,
        )
    return Answer(output=result.stdout, errors=result.stderr, ended=result.why, exit_code=result.exit_code, seconds=result.duration)


@app.post("/stream")
async def stream(program: Program) -> StreamingResponse:
    """What it writes, while it writes it. Whoever goes away ends it."""

    box = aio.Sandbox(
        IMAGE,
        program.command,
        stdin=dockless.DEVNULL,
        stdout=dockless.PIPE,
        stderr=dockless.STDOUT,
        text=True,
        errors="replace",
        **LIMITS,
    )

    async def lines() -> AsyncIterator[str]:
        async with turn, box:
            async for line in box.stdout:
                yield line

    return StreamingResponse(lines(), media_type="text/plain")
