"""Judges a history by the sentences of the guarantees page.

Each check is a function that yields the messages that break its sentence, which is its docstring.
The names are those of Jepsen's checkers of queues where it has one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

import msgspec

from coherer._wire.rocketmq.codes import HALF_NOT_FOUND
from tests.simulation.history import FAULTS, Event, History, Place
from tests.simulation.plan import QUERY
from tests.simulation.receivers import ATTEMPTS, GROUPS, group_of
from tests.simulation.senders import (
    GUEST_NAME,
    GUESTS,
    LEDGER,
    NEWS,
    ORDERS,
    SCRATCH,
    answer_to,
    keys_of,
)

SLACK_S: Final = 130.0
"""How long a fault can have an effect: a broker forgets a silent member after 120 s."""
SHARED_S: Final = SLACK_S + 25.0
"""The others share its queues within 20 s."""
PROMPT_S: Final = 4.0
"""Within this time a message arrives if nothing goes wrong, its retries not counted."""
TAKEN_S: Final = 15.0
"""Within this time another member gets the partitions of one that has left."""
RETRY_S: Final = (3.0, 4.0, 6.0)
"""The delays of the retries: the levels from the third on."""
SYNCED_S: Final = 2.0
"""The flush interval, and the slowest sync of the simulated disk."""
KEYED_MAX: Final = 64
"""A broker returns so many messages with a key, the newest ones."""
DENIED: Final = "AclException"
"""In the text of an error: the account may not do this."""
MS: Final = 0.001
"""Times of messages are whole milliseconds."""


class Wrong(msgspec.Struct, frozen=True):
    """A broken promise.

    Args:
        check: which.
        message: the message that shows it.
        text: how.
    """

    check: str
    message: str
    text: str


Found = Iterator[tuple[str, str]]


def stored_places(history: History) -> dict[str, set[Place]]:
    """Where each message lies at the end."""
    found: dict[str, set[Place]] = defaultdict(set)
    for event in history.of("final"):
        assert event.place is not None
        found[event.message].add(event.place)
    return found


def held(history: History) -> list[Event]:
    """What the queues hold at the very end: files are deleted while somebody looks, too."""
    first = {one.place.queue: one.place.offset for one in history.of("begins") if one.place}
    return [
        event
        for event in history.of("final")
        if event.place is not None and event.place.offset >= first.get(event.place.queue, 0)
    ]


def deliveries(history: History) -> dict[tuple[str, str, int], list[Event]]:
    """When each group received each attempt of each message."""
    found: dict[tuple[str, str, int], list[Event]] = defaultdict(list)
    for event in history.of("received"):
        found[event.group, event.message, event.attempt].append(event)
    return found


def disturbed(
    history: History, begin_s: float, end_s: float, kinds: frozenset[str] = FAULTS
) -> bool:
    """Whether something went wrong between two times."""
    return any(
        begin_s <= event.at_s <= end_s and event.what in kinds for event in history.of(*kinds)
    )


# -- what is stored


def expired(history: History) -> Callable[[Event], bool]:
    """Whether a message that was stored may have been deleted: it is old, or its topic was deleted.

    Files are deleted from the beginning: what lies behind the first message of its queue is there.
    """
    end_s = history.events[-1].at_s if history.events else 0.0
    deleted_s = max((event.at_s for event in history.of("deleting", "deleted")), default=-1.0)
    first: dict[str, int] = {}
    for event in history.of("final"):
        if event.place is not None:
            first.setdefault(event.place.queue, event.place.offset)
    for event in history.of("begins"):  # files are deleted while the queue is read, too
        if event.place is not None and event.place.queue in first:
            first[event.place.queue] = max(first[event.place.queue], event.place.offset)

    def may_be(event: Event) -> bool:
        place = event.place
        if place is not None and place.queue.startswith(f"{SCRATCH}@") and event.at_s <= deleted_s:
            return True
        begins = first.get(place.queue, 1 << 62) if place is not None else 1 << 62
        old = event.at_s <= end_s - history.retention_s + MS
        return old and (place is None or place.offset < begins)

    return may_be


def lost(history: History) -> Found:
    """What a broker has acknowledged is in its queue after a kill; and after a power cut, too, if
    it acknowledges what is on the disk only. Retention deletes nothing before its time, and nothing
    that still waits."""
    places = stored_places(history)
    may_be_gone = expired(history)
    seen = {event.message for event in history.of("received")}
    for event in [] if history.lossy else history.of("stored"):
        if not places[event.message] and may_be_gone(event):
            if event.place is None and event.message not in seen:
                yield event.message, "acknowledged for later, deleted, and delivered to nobody"
        elif event.place is not None and event.place not in places[event.message]:
            yield (
                event.message,
                f"acknowledged at {event.place}, and now in {places[event.message]}",
            )
        elif not places[event.message]:
            yield event.message, "acknowledged, and in no queue"


def unexpected(history: History) -> Found:
    """Whoever receives a message receives what somebody has sent."""
    sent = {event.message for event in history.of("send", "begun")}
    for event in history.of("received", "row", "final", "dead"):
        if event.message not in sent:
            yield event.message, f"{event.what} by {event.who}, and sent by nobody"


def duplicate(history: History) -> Found:
    """A send stores a message once, unless `retry_lost` is set; and a timed message is delivered
    once, unless a power cut came before its delivery was synced, or a bit has flipped nearby."""
    cuts_s = [event.at_s for event in history.of("power", "rotten")]
    due_s = {event.message: event.due_s for event in history.of("send") if event.due_s}
    received_s: dict[str, float] = {}
    for event in history.of("received"):
        received_s.setdefault(event.message, event.at_s)
    for message, places in stored_places(history).items():
        repeatable = message in due_s and any(
            due_s[message] <= cut_s < received_s.get(message, cut_s) + SYNCED_S for cut_s in cuts_s
        )
        if len(places) > 1 and not repeatable:
            yield message, f"sent once, and stored at {sorted(places)}"


def inconsistent_offsets(history: History) -> Found:
    """An offset never means two messages, not even after a power cut, unless a bit has flipped in a
    message that was stored just before it."""
    found: dict[Place, Event] = {}
    power = frozenset({"power"})
    for event in history.of("stored", "received", "row", "final"):
        if event.place is None or event.place.queue.startswith(f"{SCRATCH}@"):
            continue
        first = found.setdefault(event.place, event)
        if first.message in history.rotten and disturbed(
            history, first.at_s, first.at_s + SYNCED_S, power
        ):
            continue
        if first.message != event.message:
            yield event.message, f"{event.place} was {first.message} ({first.what} at {first.at_s})"


def reordered(history: History) -> Found:
    """What one producer sends to one queue, each after the receipt of the one before, lies in the
    order of sending."""
    newest: dict[tuple[str, str], Event] = {}
    for event in history.of("stored"):
        if event.place is None:
            continue
        key = (event.who, event.place.queue)
        before = newest.get(key)
        if event.place.queue.startswith(f"{SCRATCH}@"):
            continue  # it was created again
        if before is not None and before.place is not None and before.place > event.place:
            yield event.message, f"{event.place} follows {before.place} ({before.message})"
        newest[key] = event


def scattered(history: History) -> Found:
    """`order_by` sends all messages with one key to one queue, as long as the topic has the same
    queues: with several brokers, it has fewer while one is away."""
    queues: dict[str, str] = {}
    stored = [event for event in history.of("stored") if event.place is not None]
    brokers = {event.place.queue.partition(".")[0] for event in stored if event.place is not None}
    for event in stored if len({one.partition("@")[2] for one in brokers}) == 1 else ():
        if event.place is None or not event.place.queue.startswith(f"{LEDGER}@"):
            continue
        queue = queues.setdefault(event.who, event.place.queue)
        if event.place.queue != queue:
            yield event.message, f"{event.who} has sent to {queue} before"


def unavailable(history: History) -> Found:
    """When nothing is wrong any more, each send is stored, and each request of a client or an
    operator answered. Only half messages that a power cut has taken cannot be committed any more.
    """
    calm_s = history.calm_s()
    for event in history.of("failed"):
        is_lost = history.lossy and HALF_NOT_FOUND in event.note
        if event.at_s > calm_s and event.who != GUEST_NAME and not is_lost:
            yield event.message, f"not stored when all was well: {event.note}"


def answered(history: History) -> Found:
    """A request gets its own answer."""
    for event in history.of("answered"):
        if event.note != answer_to(event.message):
            yield event.message, f"answered by {event.note!r}"


def findable(history: History) -> Found:
    """A message with keys that is in its queue is found by each of them, if its broker has at most
    64 with that key: it returns no more."""
    found = {(event.message, event.place, event.note) for event in history.of("found")}
    with_key: Counter[tuple[str, str]] = Counter()
    for event in history.of("final"):
        assert event.place is not None
        topic, _, broker = event.place.queue.rpartition(".")[0].partition("@")
        for key in keys_of(event.message) if topic == LEDGER else ():
            with_key[broker, key] += 1
    for event in held(history):
        assert event.place is not None
        topic, _, broker = event.place.queue.rpartition(".")[0].partition("@")
        for key in keys_of(event.message) if topic == LEDGER else ():
            is_among = with_key[broker, key] <= KEYED_MAX
            if is_among and (event.message, event.place, key) not in found:
                yield event.message, f"{event.place} is not found by {key}"


def since(history: History) -> Found:
    """The offset of a time is behind every message that was acknowledged before it, and not behind
    one that was sent after it."""
    sent_s = {event.message: event.at_s for event in history.of("send")}
    there = {(event.message, event.place) for event in held(history)}
    # A search by time may look at a record in whose time a bit has flipped.
    for asked in [] if history.jumped or history.rotten else history.of("since"):
        assert asked.place is not None
        for event in history.of("stored"):
            if event.place is None or event.place.queue != asked.place.queue:
                continue
            if (event.message, event.place) not in there:
                continue  # retention may have deleted it
            text = f"{event.place}, and the offset since {asked.due_s:.3f} is {asked.place.offset}"
            if event.at_s <= asked.due_s - MS and event.place.offset >= asked.place.offset:
                yield event.message, f"acknowledged before, at {text}"
            if sent_s[event.message] >= asked.due_s and event.place.offset < asked.place.offset:
                yield event.message, f"sent later, to {text}"


def transactions(history: History) -> Found:
    """A committed transaction becomes visible; one that is rolled back never does."""
    rolled_back = {event.message for event in history.of("rolled back")}
    end_s = history.events[-1].at_s if history.events else 0.0
    kept_s = end_s - history.retention_s
    committed = {event.message for event in history.of("committed") if event.at_s > kept_s}
    visible = stored_places(history)
    for event in history.of("received", "row", "final"):
        if event.message in rolled_back:
            yield event.message, f"rolled back, and {event.what} by {event.who}"
    begun = {event.message for event in history.of("begun")}
    seen = {event.message for event in history.of("received")}
    for message in () if history.lossy else sorted(committed & begun):
        if not (visible.get(message) or message in seen):
            yield message, "committed, and never visible"


def undecided(history: History) -> Found:
    """Consumers see a row of a transactional sink only when its micro-batch is decided."""
    rows = {event.message for event in history.of("begun") if event.who == QUERY}
    decided = {event.message: event for event in reversed(history.of("decided"))}
    for event in history.of("received", "row", "final"):
        first = decided.get(event.message)
        if event.message in rows and (first is None or event.at_s < first.at_s):
            yield event.message, f"{event.what} by {event.who}, and not decided before"


# -- what is delivered


def tabled(history: History) -> Found:
    """Every message that the broker keeps lands in the table of a streaming query exactly once."""
    rows = Counter((event.message, event.place) for event in history.of("row"))
    for event in held(history) if history.of("query") else ():
        assert event.place is not None
        if event.place.queue.startswith(f"{ORDERS}@") and not rows[event.message, event.place]:
            yield event.message, f"{event.place} is not in the table"
    for (message, place), times in rows.items():
        if times > 1:
            yield message, f"{place} is in the table {times} times"


def unseen(history: History) -> Found:
    """Every group receives every message that is stored at the end and passes its filter, and every
    member of a broadcast group does."""
    labels = dict.fromkeys(event.group for event in history.of("joined"))
    received = {(event.group, event.message) for event in history.of("received")}
    sent = {event.message: event for event in history.of("send", "begun")}
    for event in history.of("final"):
        assert event.place is not None
        topic = event.place.queue.partition("@")[0]
        for label in labels:
            group = group_of(label)
            wanted = group.topic == topic and group.accepts(sent.get(event.message, event))
            if wanted and (label, event.message) not in received:
                yield event.message, f"group {label} has never received it"


def lagging(history: History) -> Found:
    """An operator sees no lag once a group has received everything. A group with a filter may show
    some: a pull that waits reports what it has skipped only when it ends."""
    for event in history.of("lags"):
        name = event.group
        may_not_read = name == GUESTS
        if int(event.note) and not (may_not_read or (name in GROUPS and GROUPS[name].filter)):
            yield "", f"{event.group} is {event.note} messages behind"


def filtered(history: History) -> Found:
    """A group receives only messages that pass its filter."""
    sent = {event.message: event for event in history.of("send", "begun")}
    for event in history.of("received"):
        if not group_of(event.group).accepts(sent.get(event.message, event)):
            yield event.message, f"{event.group} has another filter"


def nonmonotonic_poll(history: History) -> Found:
    """A group receives the messages of a queue for the first time in their order, unless a slave
    has kept what its master lost, and delivers it late; or a member of the group has it already,
    which handles it late."""
    if history.forked:
        return
    there = stored_places(history)
    newest: dict[tuple[str, str], Place] = {}
    seen: set[tuple[str, Place]] = set()
    for event in history.of("received"):
        place = event.place
        if place is None or (event.group, place) in seen or event.group == "scraps":
            continue
        seen.add((event.group, place))
        before = newest.get((event.group, place.queue))
        if before is not None and before > place:
            if not (history.lossy or history.behind) or place in there[event.message]:
                yield event.message, f"{place} came to {event.group} after {before}"
        else:
            newest[event.group, place.queue] = place


def repeated(history: History) -> Found:
    """A message is delivered twice for a reason only: something went wrong, or a member joined, and
    took a queue from one that had not said yet what it has acknowledged. That a member leaves in
    order is no reason."""
    reasons = FAULTS | {"joined"}
    refusals = Counter(
        (event.group, event.message, event.attempt + 1) for event in history.of("refused")
    )
    for (group, message, attempt), events in deliveries(history).items():
        if group in {"press", "scraps"}:
            continue  # an administrator resets the group, or creates its topic again
        if attempt and len(events) <= refusals[group, message, attempt]:
            continue  # the attempt before was delivered twice
        if group_of(group).orderly and refusals[group, message, attempt + 1]:
            continue  # another member begins with the first attempt again
        for before, event in pairwise(events):
            if before.place == event.place and not disturbed(
                history, before.at_s - SHARED_S, event.at_s, reasons
            ):
                text = f"attempt {attempt} came to {group} at {before.at_s:.3f}, and for no reason"
                yield message, f"{text} again at {event.at_s:.3f}"


def forgotten(history: History) -> Found:
    """What `commit` has acknowledged is not delivered again, unless the broker dies within 5 s or a
    member that was cut off still has it."""
    died = frozenset({"killed", "power", "promoted"})
    cut_off = (FAULTS | {"joined"}) - died - {"cut", "crashed", "stop", "started"}
    saved_s = history.saved_s
    again = deliveries(history)
    for event in history.of("kept"):
        for later in again[event.group, event.message, 0]:
            if (
                later.at_s > event.at_s
                and not disturbed(history, event.at_s - saved_s, event.at_s + saved_s, died)
                and not disturbed(history, event.at_s - SLACK_S, later.at_s, cut_off)
            ):
                text = f"committed at {event.at_s:.3f} by {event.group}"
                yield event.message, f"{text}, and delivered at {later.at_s:.3f}"


def early(history: History) -> Found:
    """A timed message is not delivered before it is due, and a retry not before its delay."""
    due_s = {event.message: event.due_s for event in history.of("send") if event.due_s}
    refused_s: dict[tuple[str, str, int], float] = {}
    for event in [] if history.jumped else history.of("received", "row", "refused"):
        if event.what == "refused":
            refused_s.setdefault((event.group, event.message, event.attempt), event.at_s)
            continue
        if event.at_s < due_s.get(event.message, 0.0) - MS:
            yield event.message, f"due at {due_s[event.message]:.4f}, received at {event.at_s:.4f}"
        since_s = refused_s.get((event.group, event.message, event.attempt - 1))
        if event.group == "crew" and since_s is not None:
            delay_s = RETRY_S[min(event.attempt, len(RETRY_S)) - 1]
            # A refusal that no broker takes is kept by the member, for some seconds.
            if event.at_s < since_s + delay_s - MS and not disturbed(
                history, since_s - SLACK_S, event.at_s
            ):
                yield event.message, f"refused at {since_s:.4f}, back at {event.at_s:.4f}"


def late(history: History) -> Found:
    """When nothing is wrong any more, a message arrives soon after it was sent, or is due."""
    calm_s = history.calm_s()
    labels = dict.fromkeys(event.group for event in history.of("joined"))
    first = deliveries(history)
    stored = stored_places(history)
    for event in [] if history.jumped else history.of("send"):
        if event.at_s < calm_s or not stored[event.message] or event.who == GUEST_NAME:
            continue
        topic = min(stored[event.message]).queue.partition("@")[0]
        expected_s = max(event.at_s, event.due_s) + PROMPT_S
        for label in labels:
            group = group_of(label)
            if group.topic != topic or not group.accepts(event) or group.orderly:
                continue
            found = first.get((label, event.message, 0))
            left = any(
                one.group == label and one.at_s > event.at_s - TAKEN_S for one in history.of("left")
            )
            if found and found[0].at_s > expected_s + (TAKEN_S if left else 0):
                text = f"sent at {event.at_s:.3f}, due at {event.due_s:.3f}"
                yield event.message, f"{text}, and received by {label} at {found[0].at_s:.3f}"


# -- retries, and orderly groups


def retries(history: History) -> Found:
    """A message that is refused comes back with a higher `attempt`, one by one, until it is handled
    or was refused too often, or a slave that lacks it becomes the master."""
    refused = {(event.group, event.message, event.attempt) for event in history.of("refused")}
    handled = {(event.group, event.message) for event in history.of("handled")}
    received = deliveries(history)
    is_lossy = history.lossy or history.behind  # a slave that lags does not hold up retries
    for group, message, attempt in received:
        if attempt and (group, message, attempt - 1) not in refused:
            yield message, f"attempt {attempt} came to {group}, and {attempt - 1} was not refused"
    for group, message, attempt in () if is_lossy else sorted(refused):
        last = group == "crew" and attempt >= ATTEMPTS - 1
        back = (group, message, attempt + 1) in received
        if not (last or back or (group, message) in handled or history.retention_s < SLACK_S):
            yield message, f"refused by {group} at attempt {attempt}, and never came back"


def dead_letters(history: History) -> Found:
    """A message that was refused too often becomes a dead letter, once for each last refusal; no
    other message does."""
    refused: dict[str, list[Event]] = defaultdict(list)
    for event in history.of("refused"):
        if event.group == "crew" and event.attempt >= ATTEMPTS - 1:
            refused[event.message].append(event)
    dead: dict[str, int] = defaultdict(int)
    for event in history.of("dead"):
        dead[event.message] += 1
    for message, number in dead.items():
        # The answer to a refusal can be lost: then it is sent to the retry topic in addition.
        most = sum(
            2 if disturbed(history, event.at_s - SLACK_S, event.at_s + PROMPT_S) else 1
            for event in refused[message]
        )
        if number > most:
            yield message, f"dead {number} times, refused for the last time {most} times"
    end_s = history.events[-1].at_s if history.events else 0.0
    for message in () if history.lossy or history.behind else refused:
        if not dead[message] and refused[message][0].at_s > end_s - history.retention_s:
            yield message, f"refused {ATTEMPTS} times, and no dead letter"


def replayed(history: History) -> Found:
    """A replay sends each dead letter, and no replay sends one to a topic that another one, or one
    that was killed, has sent there."""
    places: dict[str, list[Place]] = defaultdict(list)
    for event in history.of("mended"):
        assert event.place is not None
        places[event.note].append(event.place)
    for event in history.of("mended"):
        if len(places[event.note]) > 1:
            yield event.message, f"dead letter {event.note} was sent to {places[event.note]}"
    for event in history.of("letter"):
        if not places[event.note]:
            yield event.message, f"dead letter {event.note} was not sent"


def exclusive(history: History) -> Found:
    """Two members of an orderly group never work on one queue at the same time, unless one was cut
    off until its locks expired."""
    cut_off = frozenset({"frozen", "unplugged", "stopped", "severed"})
    working: dict[tuple[str, str], Event] = {}
    gone: dict[str, float] = {}
    for event in history.events:
        if event.what in {"crashed", "frozen"}:
            gone[event.who] = event.at_s
        if event.place is None or not event.group or not group_of(event.group).orderly:
            continue
        key = (event.group, event.place.queue)
        if event.what == "received":
            before = working.get(key)
            if (
                before is not None
                and before.who != event.who
                and gone.get(before.who, 0) < before.at_s
                and not disturbed(history, before.at_s - SLACK_S, event.at_s, cut_off)
            ):
                yield event.message, f"{before.who} works on {before.message} in {key[1]}"
            working[key] = event
        elif event.what in {"handled", "refused"} and working.get(key, event).who == event.who:
            working.pop(key, None)


def overtaken(history: History) -> Found:
    """A member of an orderly group gets nothing behind a message that it refused, until the group
    has handled it, or retention may have deleted it."""
    stored_s = {event.message: event.at_s for event in history.of("stored")}
    refused: dict[tuple[str, str], Event] = {}  # by member and queue
    handled: set[str] = set()
    for event in history.events:
        if event.place is None or not event.group or not group_of(event.group).orderly:
            continue
        key = (event.who, event.place.queue)
        if event.what == "handled":
            handled.add(event.message)
        elif event.what == "refused" and event.message not in handled:
            refused[key] = event
        elif event.what == "received" and (before := refused.pop(key, None)) is not None:
            assert before.place is not None
            kept_s = event.at_s - history.retention_s
            old = stored_s.get(before.message, event.at_s) <= kept_s + MS
            if event.place > before.place and not old and before.message not in handled:
                yield event.message, f"{before.message} was refused, and lies before it"


# -- administration


REGISTERED_S: Final = {"node": 1.0}
"""Until a name server knows all brokers again after a start, 35 s if it is apart: they tell it that
they are there every 30 s."""


def access(history: History) -> Found:
    """What an account may not do is refused as soon as the change of the account has returned, and
    what it may do works, while clients stay connected, if the change has reached all brokers. It
    reads nothing that is sent afterwards."""
    changes = history.of("changing", "permitted", "forbidden")
    begun_s = {event.message: event.at_s for event in history.of("send")}
    for event in history.of("stored", "failed", "overheard"):
        if event.who != GUEST_NAME or event.message not in begun_s:
            continue
        before = [one for one in changes if one.at_s <= begun_s[event.message]]
        meanwhile = any(begun_s[event.message] < one.at_s <= event.at_s for one in changes)
        state = before[-1] if before and not meanwhile else None
        if state is None or (len(before) > 1 and _is_away(history, before[-2].at_s, state.at_s)):
            continue
        if state.what == "forbidden" and event.what != "failed":
            yield event.message, f"{event.what}, and forbidden since {state.at_s:.3f}"
        if state.what == "permitted" and event.what == "failed" and DENIED in event.note:
            yield event.message, f"refused, and permitted since {state.at_s:.3f}: {event.note}"


def _is_away(history: History, begin_s: float, end_s: float) -> bool:
    """Whether a broker was down, or had not registered yet, in a time."""
    down_s: dict[str, float] = {}
    for event in history.of("killed", "power", "stop", "started"):
        if event.what != "started":
            down_s.setdefault(event.who, event.at_s)
            continue
        known_s = event.at_s + REGISTERED_S.get(event.who, 35.0)
        if down_s.pop(event.who, end_s + 1) <= end_s and known_s >= begin_s:
            return True
    return any(at_s <= end_s for at_s in down_s.values())


def reset(history: History) -> Found:
    """After an administrator has reset a group to the beginning, its members receive all messages
    again."""
    last_s: dict[str, float] = {}
    for event in history.of("received"):
        if event.group == "press":
            last_s[event.message] = event.at_s
    final = {event.message for event in history.of("final")}
    died, slack_s = frozenset({"killed", "power", "stop", "promoted"}), SLACK_S
    has_members = any(event.group == "press" for event in history.of("joined"))
    for event in history.of("reset") if has_members else ():
        before = [one.at_s for one in history.of("resetting") if one.at_s <= event.at_s]
        begun_s = before[-1] if before else event.at_s
        # The broker saves positions later, and tells only members that it can reach.
        if disturbed(
            history, event.at_s - slack_s, event.at_s + history.saved_s, FAULTS - died
        ) or (
            disturbed(
                history, event.at_s - SLACK_S, event.at_s + history.saved_s, died | {"started"}
            )
        ):
            continue
        for stored in history.of("stored"):
            if (
                stored.place is not None
                and stored.place.queue.startswith(f"{NEWS}@")
                and stored.at_s < begun_s
                and stored.message in final
                and last_s.get(stored.message, 0.0) < begun_s
            ):
                yield stored.message, f"not received again after the reset at {event.at_s:.3f}"


def undead(history: History) -> Found:
    """What a deleted topic held does not come back, neither after a restart nor when the topic is
    created again, unless one of its brokers was away when it was deleted."""
    deletions = [
        event
        for event in history.of("deleted")
        if not disturbed(history, event.at_s, event.at_s + history.saved_s, frozenset({"power"}))
        and not _is_away(history, event.at_s, event.at_s)
    ]
    deleted_s = deletions[-1].at_s if deletions else -1.0
    stored_s = {event.message: event.at_s for event in history.of("stored")}
    for event in history.of("final"):
        is_scratch = event.place is not None and event.place.queue.startswith(f"{SCRATCH}@")
        if is_scratch and stored_s.get(event.message, deleted_s) < deleted_s:
            yield event.message, f"its topic was deleted at {deleted_s:.3f}"


def restored(history: History) -> Found:
    """A backup of a running node holds everything that was acknowledged before it began, at the
    same offsets; also one that continues an earlier backup."""
    backups, found = history.of("backup"), {}
    for event in history.of("restored"):
        assert event.place is not None
        found[event.message, event.place.offset] = event
    brokers = {event.place.queue.rpartition(".")[0] for event in history.of("final") if event.place}
    several = len({one.partition("@")[2] for one in brokers}) > 1
    final = {event.message for event in history.of("final")}
    for event in [] if several or not backups else history.of("stored"):
        if (
            event.place is not None
            and event.place.queue.startswith(f"{ORDERS}@")
            and event.at_s < backups[-1].at_s
            and event.message in final
            and (event.message, event.place.offset) not in found
        ):
            yield event.message, f"not in the backup that was made at {backups[-1].at_s:.3f}"


def filed(history: History) -> Found:
    """The files of a node that was stopped hold what its queues held, at the same offsets. Those of
    a node that runs hold nothing else."""
    rows = {event.place: event.message for event in history.of("filed")}
    first: dict[str, int] = {}
    for place in rows:
        assert place is not None
        first[place.queue] = min(first.get(place.queue, place.offset), place.offset)
    for event in held(history) if history.of("filed read") else []:
        assert event.place is not None
        begins = first.get(event.place.queue, event.place.offset + 1)
        is_gone = history.retention_s < float("inf") and event.place.offset < begins
        if rows.get(event.place) != event.message and not is_gone:
            yield event.message, f"the files have {rows.get(event.place)} at {event.place}"
    for event in history.of("opened"):
        if rows.get(event.place, event.message) != event.message:
            yield event.message, f"the files of the running node had it at {event.place}"


def copied(history: History) -> Found:
    """A slave copies its master's log to the end, also around what a power cut has torn, unless it
    logs that it holds other bytes than its master."""
    news: dict[str, str] = {}
    for event in history.of("differs", "renewed", "copied"):
        if event.what == "copied" and event.size and news.get(event.who) != "differs":
            yield "", f"{event.who} lacks {event.size} bytes"
        news[event.who] = event.what


def two_masters(history: History) -> Found:
    """At most one master acts: one that another has replaced never acts again without a new
    election."""
    newest = 0
    for event in history.of("acting"):
        if event.term < newest:
            yield "", f"{event.who} acts in term {event.term}, though there was term {newest}"
        newest = max(newest, event.term)


def catalog(history: History) -> Found:
    """A topic whose creation or deletion a master has acknowledged is, or is not, there at the end,
    whichever master is active then."""
    known = {event.message for event in history.of("known")}
    newest: dict[str, Event] = {}
    for event in history.of("founding", "founded", "abolishing", "abolished"):
        newest[event.message] = event
    for topic, event in newest.items():
        if event.what == "founded" and topic not in known:
            yield topic, f"created at {event.at_s:.3f}, and not there"
        if event.what == "abolished" and topic in known:
            yield topic, f"deleted at {event.at_s:.3f}, and still there"


def errors(history: History) -> Found:
    """No error is left for nobody to read."""
    for event in history.of("error"):
        yield "", event.note


CHECKS: Final[tuple[Callable[[History], Found], ...]] = (
    lost,
    unexpected,
    duplicate,
    inconsistent_offsets,
    reordered,
    scattered,
    unavailable,
    answered,
    findable,
    since,
    transactions,
    undecided,
    tabled,
    unseen,
    lagging,
    filtered,
    nonmonotonic_poll,
    repeated,
    forgotten,
    early,
    late,
    retries,
    dead_letters,
    replayed,
    exclusive,
    overtaken,
    access,
    reset,
    undead,
    restored,
    filed,
    copied,
    two_masters,
    catalog,
    errors,
)


ALWAYS: Final = frozenset({unexpected, undecided, access})
"""The checks of what holds for a message with a flipped bit, too."""


def judge(history: History) -> list[Wrong]:
    """All broken promises of a history."""
    return [
        Wrong(check.__name__, message, text)
        for check in CHECKS
        for message, text in check(history)
        if message not in history.rotten or check in ALWAYS
    ]
