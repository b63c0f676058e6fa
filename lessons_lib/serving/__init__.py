"""Serving: many callers, one engine.

Read in this order: messages, engine_loop, mailbox, owner, admission, async_engine, engine_process (lesson 14); router,
failover (15); tensor_parallel, ranks, follower, parallel_engine (16).
"""

from lessons_lib.engine.metrics import EngineGauges
from lessons_lib.serving.admission import AdmissionControl, Overloaded
from lessons_lib.serving.async_engine import AsyncEngine, RequestStream
from lessons_lib.serving.engine_loop import EngineLoop
from lessons_lib.serving.mailbox import Mailbox
from lessons_lib.serving.messages import Draining, EngineDead, RequestEnded

__all__ = [
    "AdmissionControl",
    "AsyncEngine",
    "Draining",
    "EngineDead",
    "EngineGauges",
    "EngineLoop",
    "Mailbox",
    "Overloaded",
    "RequestEnded",
    "RequestStream",
]
