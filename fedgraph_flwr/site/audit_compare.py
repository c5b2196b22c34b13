"""Where the audit log of a site and that of the server differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedgraph_flwr.audit_log import START, Checked
from fedgraph_flwr.audit_words import name_message
from fedgraph_flwr.entries import ANSWERED, ASKED
from fedgraph_flwr.server_log import ENDED, RECEIVED, RUN

Key = tuple[Any, ...]
ROLL_CALL = name_message("query")
_MOST = 20  # differences of a kind that are listed


def compare(site: list[Checked], server: Checked) -> list[str]:
    """Say where a site's logs and the server's differ, about the nodes of the site.

    Messages of runs that the server's log has no line of are not compared: they are of
    another server. Nor is a roll call whose answer the server did not wait for.
    """
    ours, theirs = _of_site(site, server)
    unheard = _unheard(ours, theirs, server)
    heard = [r for r in ours if r.get("run") not in unheard]
    if _nodes_of(server.records, RECEIVED) and not theirs:
        return [
            "the server's log knows none of the nodes that the site's log names: both"
            " are of different sites, or the site's log was written anew"
        ]
    return [
        *_shortened(_unknown_heads(site, theirs)),
        *_shortened(_differing_messages(heard, theirs)),
        *_shortened(_differing_replies(heard, theirs)),
        *_shortened(_differing_runs(ours, server.records)),
    ]


def _of_site(
    site: list[Checked], server: Checked
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the site's lines of this server's runs, and the server's of the site."""
    lines = [r for log in site for r in log.records]
    runs, nodes = _runs_of(server.records, RUN), _nodes_of(lines, ASKED)
    return (
        [r for r in lines if r.get("run") in runs],
        [r for r in server.records if r.get("node") in nodes],
    )


def _unheard(
    ours: Sequence[Mapping[str, Any]],
    theirs: Sequence[Mapping[str, Any]],
    server: Checked,
) -> set[int]:
    """Find runs that were refused before the site's answer to the roll call came.

    The server's log has nothing of the site in them, the site's the roll call alone.
    """
    refused = {
        r["run"]
        for r in server.records
        if r.get("event") == ENDED and r.get("outcome") == "refused"
    }
    known = {r.get("run") for r in theirs}
    further = {
        r["run"]
        for r in ours
        if r.get("event") in (ASKED, ANSWERED) and r.get("message") != ROLL_CALL
    }
    return refused & _runs_of(ours, ASKED) - known - further


def not_compared(site: list[Checked], server: Checked) -> list[str]:
    """Say what one log alone knows, as it may be another's: runs, and nodes."""
    lines = [r for log in site for r in log.records]
    runs = _runs_of(lines, ASKED) - _runs_of(server.records, RUN)
    nodes = _nodes_of(server.records, RECEIVED) - _nodes_of(lines, ASKED)
    found = {
        "the server's log has no line of the runs {}: they were not compared, and are"
        " of another server, or their lines are gone": runs,
        "the site's log has no line of the nodes {}: they were not compared, and are"
        " other sites, or lines of this one are gone": nodes,
        "the server refused the runs {} before this site's answer to the roll call had"
        " come: it was not compared": _unheard(*_of_site(site, server), server),
    }
    return [
        words.format(", ".join(map(str, sorted(of))))
        for words, of in found.items()
        if of
    ]


def _runs_of(records: Iterable[Mapping[str, Any]], event: str) -> set[int]:
    return {r["run"] for r in records if r.get("event") == event}


def _nodes_of(records: Iterable[Mapping[str, Any]], event: str) -> set[int]:
    return {r["node"] for r in records if r.get("event") == event and "node" in r}


def _shortened(found: Iterable[str]) -> list[str]:
    words = list(found)
    more = len(words) - _MOST
    return words[:_MOST] + ([f"and {more} more of this kind"] if more > 0 else [])


def _unknown_heads(
    site: list[Checked], theirs: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    known = {START, *(h for log in site for h in log.hashes)}
    for line in theirs:
        if (head := line.get("head")) is not None and head not in known:
            yield (
                f"{_message(line)}: the site told the server the head {str(head)[:12]},"
                " which no line of its log has: lines were cut off, or the log was"
                " written anew"
            )


def _differing_messages(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Name messages that one side writes down and the other does not."""
    known = Counter(_key(r) for r in ours if r.get("event") == ASKED)
    asked = Counter(_key(r) for r in theirs if r.get("event") == ASKED)
    answered = Counter(_key(r) for r in theirs if r.get("event") == RECEIVED)
    told = asked | answered  # the first roll call is known by its answer alone
    for key in sorted(told - known, key=str):
        yield f"{_words(key)}: the server asked, the site's log has no such message"
    for key in sorted(known - told, key=str):
        yield f"{_words(key)}: the site was asked, the server's log has no such message"


def _differing_replies(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Name replies that are not the same, or that one side alone knows."""
    sent = Counter(
        (*_key(r), str(r.get("client")), r.get("sha256"), sum(r["sent"].values()))
        for r in ours
        if r.get("event") == ANSWERED and "sent" in r
    )
    got = Counter(
        (*_key(r), client, about.get("sha256"), about.get("bytes"))
        for r in theirs
        if r.get("event") == RECEIVED
        for client, about in r.get("sent", {}).items()
    )
    for *key, client, digest, size in sorted(sent - got, key=str):
        yield (
            f"{_words(tuple(key))}, client {client}: the site sent {size} bytes,"
            f" {str(digest)[:12]}, and the server's log has no such reply"
        )
    for *key, client, digest, size in sorted(got - sent, key=str):
        yield (
            f"{_words(tuple(key))}, client {client}: the server got {size} bytes,"
            f" {str(digest)[:12]}, and the site's log has no such reply"
        )


def _differing_runs(
    ours: Sequence[Mapping[str, Any]], records: list[dict[str, Any]]
) -> Iterator[str]:
    told = {r["run"]: r for r in records if r.get("event") == RUN}
    seen: set[Key] = set()
    for line in (r for r in ours if r.get("event") == ASKED):
        for name, what in (("config_sha256", "configuration"), ("code_sha256", "code")):
            found, expected = line.get(name), told[line["run"]].get(name)
            key = (line["run"], name, found)
            # A site that must refuse has not read the configuration.
            if found not in (None, expected) and key not in seen:
                seen.add(key)
                yield (
                    f"run {line['run']}: the {what} was {str(found)[:12]} at the site"
                    f" and {str(expected)[:12]} at the server"
                )


def _key(line: Mapping[str, Any]) -> Key:
    return line.get("run"), line.get("message"), line.get("round")


def _message(line: Mapping[str, Any]) -> str:
    return _words(_key(line))


def _words(key: Key) -> str:
    run_id, message, number = key
    return f"run {run_id}, {message}{'' if number is None else f', round {number}'}"
