"""What must hold after a run, whatever happened in it (I1 to I5 of the design's fault table)."""

from zlib import crc32

from services.detokenizer.core.text_view import text_upto
from services.scheduler.core.lifetimes import NOBODY_READS
from shared.endings import FINISH_REASONS
from shared.log.state import RequestState, SequenceState
from shared.log.verify import Report, report_of, verify
from shared.messages.packed import pack_tokens, unpack_tokens
from tests.shard.clockwork import START_NS, now_or_never
from tests.shard.shard import Shard
from tests.shard.sim_detokenizer import VOCABULARY
from tests.shard.sim_gateway import Client
from tests.shard.sim_worker import NOT_A_NUMBER, POISON

GATEWAY_GONE_S = 2.5
ABANDONED_S = 1.5
CALM = frozenset({"kill-gateway", "kill-scheduler", "kill-worker", "kill-detokenizer"})
WORKER_MISSED = ("-worker", "-edge", "-server")
WRONGS = ("lost", "duplicated", "foreign", "prefix_mismatched", "malformed")


class BrokenRun(AssertionError):
    """A run in which something that must hold does not."""


def problems(shard: Shard) -> list[str]:
    """Everything that is wrong after a run; empty when all is well."""
    if not shard.finished:
        return [_unfinished(shard)]
    found = _wrongs("the log", report_of(shard.ledger))
    if shard.log.first_seq > 1:
        found += _wrongs("the trimmed log", now_or_never(verify(shard.log)))
    for state in shard.ledger.all_requests().values():
        found += [f"{state.request.request_id}: {problem}" for problem in _outcome(state)]
    for client in shard.clients:
        found += [f"client of {client.request_id}: {problem}" for problem in _reading(shard, client)]
    if shard.num_wrong_contexts:
        found.append(f"{shard.num_wrong_contexts} rows were computed on other KV blocks than those of their prefix")
    return found + _readers(shard) + _quarantined(shard) + _calm(shard) + _remains(shard)


def check(shard: Shard) -> None:
    """Raises BrokenRun if anything is wrong."""
    found = problems(shard)
    if found:
        raise BrokenRun("; ".join(found[:8]))


def _unfinished(shard: Shard) -> str:
    states = shard.ledger.all_requests().values()
    waiting = sum(state.done is None for state in states)
    reading = sum(not client.has_all and client not in shard.deserters for client in shard.clients)
    return (
        f"unfinished after {shard.world.now:.0f} s: {waiting} requests without outcome, {reading} clients wait; "
        f"faults {dict(shard.faults)}"
    )


def _wrongs(where: str, report: Report) -> list[str]:
    return [f"{where}: {name} {getattr(report, name)}" for name in WRONGS if getattr(report, name)]


def _outcome(state: RequestState) -> list[str]:
    """I1, I5: one outcome, which is what the tokens say, and bills what they are."""
    done = state.done
    if done is None:
        return ["no outcome"]
    found = []
    if done.positions != tuple(len(sequence.tokens) for sequence in state.sequences):
        found.append(f"billed {done.positions}, folded {[len(sequence.tokens) for sequence in state.sequences]}")
    if done.reasons != tuple(sequence.reason for sequence in state.sequences):
        found.append(f"outcome {done.reasons}, folded {[sequence.reason for sequence in state.sequences]}")
    for sequence in state.sequences:
        found += _sequence(sequence)
    return found


def _sequence(sequence: SequenceState) -> list[str]:
    """The end of a sequence, judged by its tokens alone."""
    sampling, tokens, reason = sequence.request.sampling, sequence.tokens, sequence.reason
    prompt = unpack_tokens(sequence.request.prompt_token_ids)
    found = []
    if len(tokens) > sampling.max_tokens:
        found.append(f"{len(tokens)} tokens, {sampling.max_tokens} allowed")
    if any(token in sampling.eos_token_ids for token in tokens[:-1]):
        found.append("tokens after EOS")
    if reason == "eos" and tokens[-1] not in sampling.eos_token_ids:
        found.append("no EOS at the end")
    if reason == "length" and len(tokens) != sampling.max_tokens:
        found.append(f"length after {len(tokens)} of {sampling.max_tokens} tokens")
    text = bytes(list(tokens)).decode("latin-1")
    if reason == "stop_string" and not text.endswith(sampling.stop):
        found.append(f"no stop string at the end of {text!r}")
    if any(stop in text[:-1] for stop in sampling.stop):
        found.append(f"a stop string within {text!r}")
    if reason == "error" and NOT_A_NUMBER not in prompt and "KV cache" not in sequence.message:
        found.append(f"failed: {sequence.message}")
    if reason in ("eos", "length") and sequence.prefix_hash != crc32(pack_tokens([*prompt, *tokens])):
        found.append("the prefix hash is not that of prompt and tokens")
    if NOT_A_NUMBER in prompt and tokens:
        found.append("tokens from what is no number")
    return found


def _reading(shard: Shard, client: Client) -> list[str]:
    """I2, I3: what was read is what is in the log, all of it if the client stayed."""
    state = shard.ledger.all_requests().get(client.request_id)
    if state is None:
        return ["accepted, and not in the log"] if client.accepted else []
    found = []
    for sequence in state.sequences:
        choice = sequence.choice
        tokens, end = client.token_ids[choice], client.ends[choice]
        if tokens != sequence.tokens[: len(tokens)]:
            found.append(f"read {list(tokens)}, logged {list(sequence.tokens)}")
        if end is None:
            continue
        if (end, len(tokens)) != (sequence.reason, len(sequence.tokens)):
            found.append(f"ended by {end} at {len(tokens)}, logged {sequence.reason} at {len(sequence.tokens)}")
        if end in FINISH_REASONS and end != "cancel":
            text = text_upto(VOCABULARY, sequence.request.sampling, sequence.tokens)
            if client.texts[choice] != text:
                found.append(f"read {client.texts[choice]!r}, logged {text!r}")
    return found


def _readers(shard: Shard) -> list[str]:
    """What becomes of a request that nobody reads, where nothing but deaths disturbs those who see to it."""
    if not CALM.issuperset(shard.faults):
        return []
    found = []
    for request_id, state in shard.ledger.all_requests().items():
        request, ended = state.request, shard.ended_at[request_id]
        died = shard.gateway_deaths.get(request.owner)
        if request.keep_s <= 0 and died is not None:
            late_s = ended - _seen_to_since(shard, max(died, (request.created_ns - START_NS) / 1e9), ended)
            if late_s > GATEWAY_GONE_S:
                found.append(f"{request_id}: ends {late_s:.2f} s after its gateway")
        if request.keep_s > 0 and state.unread_ns is not None:
            unread = (state.unread_ns - START_NS) / 1e9
            late_s = ended - _seen_to_since(shard, unread + request.keep_s, ended)
            if late_s > ABANDONED_S:
                found.append(f"{request_id}: ends {late_s:.2f} s after nobody had read it for {request.keep_s} s")
            if state.sequences[0].message == NOBODY_READS and ended < unread + request.keep_s:
                found.append(f"{request_id}: given up {unread + request.keep_s - ended:.2f} s too early")
    return found


def _seen_to_since(shard: Shard, moment: float, until: float) -> float:
    """Since when there was a leader to see to something, between these moments."""
    return max([moment, *(takeover for takeover in shard.takeovers if moment - GATEWAY_GONE_S <= takeover <= until)])


def _quarantined(shard: Shard) -> list[str]:
    """Only what kills workers is given up; who was alone at two deaths from outside may be taken for it."""
    innocent = [
        sequence.request.request_id
        for state in shard.ledger.all_requests().values()
        for sequence in state.sequences
        if sequence.reason == "quarantined" and POISON not in unpack_tokens(sequence.request.prompt_token_ids)
    ]
    num_deaths = sum(count for fault, count in shard.faults.items() if fault.endswith(WORKER_MISSED))
    return [f"quarantined without being poison: {innocent}"] if 2 * len(innocent) > num_deaths else []


def _calm(shard: Shard) -> list[str]:
    """Loss alone costs nobody his place; once it may, since a frame that is lost twice is longer on its way than the
    leader's patience."""
    if shard.faults or shard.num_poisoned or shard.log.num_refused:
        return []
    counts = shard.ledger.counts
    num_allowed = int(shard.scenario.loss > 0)
    if counts["fence_takeover"] != 1 or counts["fence_worker"] > num_allowed:
        return [f"{counts['fence_takeover']} take-overs and {counts['fence_worker']} workers fenced without a fault"]
    return []


def _remains(shard: Shard) -> list[str]:
    """I4: whoever leads now holds nothing and is consistent, and nobody is read for who is not there."""
    if len(shard.leaders) != 1:
        return [f"{len(shard.leaders)} leaders"]
    leader = shard.leaders[0].leader
    assert leader is not None
    found = leader.core.check_integrity()
    for name, worker in leader.core.workers.items():
        if worker.blocks.num_held_blocks:
            found.append(f"{name}: {worker.blocks.num_held_blocks} blocks are still held")
    if leader.core.num_running or leader.core.num_waiting:
        found.append(f"{leader.core.num_running} sequences run and {leader.core.num_waiting} wait after the end")
    for detokenizer in shard.detokenizers:
        if len(detokenizer.desk.attachments):
            found.append(f"{detokenizer.name}: {len(detokenizer.desk.attachments)} readers are still attached")
    return found
