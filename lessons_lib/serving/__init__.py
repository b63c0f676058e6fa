"""Serving: many callers, one engine.

Read in this order: messages, engine_loop, mailbox, owner, admission, async_engine, engine_process (lesson 14); router,
failover (15); tensor_parallel, ranks, follower, parallel_engine (16).
"""

from lessons_lib.serving.admission import AdmissionControl, Overloaded
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.engine_loop import EngineLoop
