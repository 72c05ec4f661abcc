"""Events go to one callback, or through one to several."""

from fedbasis.training.events import Event, ImagesDecoded, RoundEnded, WorkersStarted, ignore, to_all


def test_all_listeners_hear_everything_in_their_order() -> None:
    heard: list[tuple[str, Event]] = []
    emit = to_all(lambda e: heard.append(("first", e)), ignore, lambda e: heard.append(("second", e)))
    events: list[Event] = [ImagesDecoded(1, 2), WorkersStarted("two"), RoundEnded({"round": 1})]
    for event in events:
        emit(event)
    assert heard == [(who, event) for event in events for who in ("first", "second")]
