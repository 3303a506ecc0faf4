"""Live sources in an asyncio event loop.

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(dispatcher))

The loop watches the dispatcher's own descriptor and its wake-up, and reads without waiting when
one of them is readable. Nothing runs in another thread, and nothing runs while there is nothing.
"""

import asyncio

from netstack_gro.dispatchers.live import LiveSource
from netstack_gro.errors import ConfigError

__all__ = ["BATCHES_PER_TURN", "serve"]

BATCHES_PER_TURN = 4
"""Batches dispatched before the event loop gets its turn, so that others get theirs."""


async def serve(source: LiveSource, *, batches: int = BATCHES_PER_TURN) -> int:
    """Dispatch in the running event loop until `stop` is called or the source has ended.

    Returns how many packets there were. The hook is called in the loop's thread, between its
    other callbacks. It is an ordinary function, as for `run`: it is called and not awaited, so it
    cannot be a coroutine function. What takes longer it hands on (`Packet.detach`,
    `asyncio.Queue.put_nowait`). What the hook or the kernel raises propagates from here, as it
    would from `run`, and so does a cancellation, which ends it between two batches. The source
    stays open, and may be served or run again.

    batches: how many are dispatched at most before the loop's other callbacks get their turn.

    Raises EngineStateError for a source that is closed, and ConfigError for ``batches`` below 1.
    """
    if batches < 1:
        raise ConfigError("batches", f"{batches} is below 1")
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    count = 0
    raised: BaseException | None = None

    def turn() -> None:
        nonlocal count, raised
        if ended.done():
            return
        try:
            taken, over = source.turn(batches)
        except BaseException as error:  # noqa: BLE001 - whoever awaits gets it
            raised = error  # a future does not take every kind of exception
            ended.set_result(None)
        else:
            count += taken
            if over:
                ended.set_result(None)

    with source.watched() as descriptors:
        try:
            for descriptor in descriptors:
                loop.add_reader(descriptor, turn)
            turn()  # what was read before, and waits for nobody: an error, a call of stop
            await ended
        finally:
            # Before anybody closes them: a number that is used again would still be watched.
            for descriptor in descriptors:
                loop.remove_reader(descriptor)
    if raised is not None:
        raise raised
    return count
