#!/usr/bin/env python3
"""Replays recorded expert routes against cache policies (standard library only, Python 3.10).

    analyze_decode_cache.py report RUN_DIR --observed-capacity N [--capture NAME] [--out DIR] ...
    analyze_decode_cache.py report --routes FILE [--out DIR] ...
    analyze_decode_cache.py synth --out FILE [--layers L --experts E --top-k K --tokens T --reuse P --seed S]

RUN_DIR/NAME is a trace of `moonshine trace` (docs/formats.md).  Before anything is said about it, it must pass a gate:
head and end are there, every token has every layer in order with distinct experts in range, the sums of the end are the
sums of the lines, and the product's policy, replayed at the recorded capacity from an empty cache, gives every recorded
hit and no other.  --routes takes routes of any origin, one {"layers": [[ids]...]} a line, which nothing vouches for.

Policies, a layer by itself unless said otherwise:
    lru         least recently used; all capacities at once by stack distance
    heat        the product's: uses halved every HALF_LIFE * slots uses, remembered for absent experts too
    lfu         uses that are never forgotten, remembered
    s3fifo      a small queue of a tenth, a main queue with reinsertion, a ghost queue: keeps one-time uses out
    lecar       victims by LRU or LFU, weights moved by regret
    global-lru, global-heat   one set of slots for all layers
    pinned      the most used experts of the first --training-steps tokens never leave, the rest is LRU; counted after them
    fixed-total LRU with different slots a layer, the best split of a total by exact dynamic programming
    belady      the expert whose next use is furthest goes, and one used later than all stays out: a bound
fixed-total and belady know the future (oracle): they bound what is possible and are not promotable to a setting.
Reports hold base names and hashes of their inputs, no paths; the folder is 0700, its files 0600.
"""

import argparse
import collections
import hashlib
import heapq
import json
import math
import os
import random
import sys

exp2 = getattr(math, "exp2", lambda x: 2.0**x)


class Bad(Exception):
    """The input is not what it must be: one line for the user."""


# ---------------------------------------------------------------------------------------------------- input


class Trace:
    """routes[layer][token] = tuple of ids; masks likewise, or None."""

    def __init__(self, name, digest, head, routes, masks, end, experts):
        self.name, self.digest, self.head = name, digest, head
        self.routes, self.masks, self.end, self.experts = routes, masks, end, experts
        self.layers, self.tokens = len(routes), len(routes[0])
        self.top_k = max(len(ids) for layer in routes for ids in layer)
        self.accesses = sum(len(ids) for layer in routes for ids in layer)


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_ids(value, experts, where):
    if not isinstance(value, list) or not value or not all(is_count(x) for x in value):
        raise Bad(f"{where}: expected an array of expert ids")
    if len(set(value)) != len(value):
        raise Bad(f"{where}: an expert is named twice")
    if experts is not None and max(value) >= experts:
        raise Bad(f"{where}: expected ids below {experts}, found {max(value)}")
    return tuple(value)


def read_trace(path, bare):
    name = os.path.basename(path)
    try:
        with open(path, "rb") as f:
            data = f.read()
    except OSError as e:
        raise Bad(f"{path}: {e.strerror}") from e
    head = end = None
    experts = None
    rows, masks = [], []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{name}: line {number}"
        try:
            item = json.loads(line)
        except ValueError as e:
            raise Bad(f"{where}: not JSON: {e}") from e
        if not isinstance(item, dict):
            raise Bad(f"{where}: expected an object")
        if end is not None:
            raise Bad(f"{where}: expected nothing behind the end")
        if "format" in item:
            if head is not None or rows:
                raise Bad(f"{where}: expected one head, in the first line")
            head = check_head(item, where)
            experts = head["experts"]
        elif "end" in item:
            end = item["end"]
        else:
            layers = item.get("layers")
            if not isinstance(layers, list) or not layers:
                raise Bad(f"{where}: expected \"layers\"")
            want = len(head["layers"]) if head else len(rows[0]) if rows else len(layers)
            if len(layers) != want:
                raise Bad(f"{where}: expected {want} layers, found {len(layers)}")
            rows.append([read_ids(x, experts, where) for x in layers])
            masks.append(item.get("hits"))
    if not rows:
        raise Bad(f"{name}: expected tokens, found none")
    if not bare and head is None:
        raise Bad(f"{name}: expected a head in line 1 (routes without one: --routes)")
    if experts is None:
        experts = 1 + max(x for row in rows for ids in row for x in ids)
    by_layer = [[row[l] for row in rows] for l in range(len(rows[0]))]
    return Trace(name, hashlib.sha256(data).hexdigest(), head, by_layer, masks, end, experts)


def check_head(head, where):
    if head.get("format") != "moonshine-routes" or head.get("version") != 1:
        raise Bad(f"{where}: expected format \"moonshine-routes\", version 1")
    for key in ("experts", "top_k", "slots", "half_life"):
        if not is_count(head.get(key)):
            raise Bad(f"{where}: {key}: expected a number")
    layers = head.get("layers")
    if not isinstance(layers, list) or not layers or not all(is_count(x) for x in layers):
        raise Bad(f"{where}: layers: expected an array of layer numbers")
    if any(a >= b for a, b in zip(layers, layers[1:])):
        raise Bad(f"{where}: layers: expected ascending numbers")
    if not 0 < head["top_k"] <= head["experts"] or head["slots"] > head["experts"] or head["half_life"] == 0:
        raise Bad(f"{where}: top_k, slots, experts and half_life do not fit each other")
    return head


# ---------------------------------------------------------------------------------------------------- policies
# Each takes a layer's sequence of id tuples and its slots, and counts.  One use never evicts what it needs, as in the
# product.


class Counts:
    """What a policy did."""

    def __init__(self):
        self.hits = self.admissions = self.evictions = 0

    def add(self, other):
        self.hits += other.hits
        self.admissions += other.admissions
        self.evictions += other.evictions
        return self


class Heat:
    """Heat of the experts of one layer (or of all); `worth` grows instead of everything else shrinking."""

    def __init__(self, half_uses):
        self.of = collections.defaultdict(float)
        self.worth, self.half_uses = 1.0, half_uses

    def use(self, ids):
        halvings = len(ids) / self.half_uses
        self.worth *= exp2(min(halvings, 300.0))
        for x in ids:
            self.of[x] += self.worth
        if self.worth >= 2.0**400:
            for x in self.of:
                self.of[x] /= 2.0**400
            self.worth /= 2.0**400


def run_scored(sequence, slots, use, score, masks=None, start=0):
    """Coldest slot goes first (lowest score, then lowest slot number); empty slots in order before that."""
    counts, slot_of, content = Counts(), {}, [None] * slots
    for step, ids in enumerate(sequence):
        use(ids)
        leased, missing, mask = set(), [], 0
        for i, x in enumerate(ids):
            if x in slot_of:
                leased.add(slot_of[x])
                mask |= 1 << i
            else:
                missing.append(x)
        if step >= start:
            counts.hits += len(ids) - len(missing)
        missing.sort(key=lambda x: -score(x))
        for x in missing:
            free = [s for s in range(slots) if s not in leased]
            if not free:
                break
            s = min(free, key=lambda s: -1.0 if content[s] is None else score(content[s]))
            if content[s] is not None:
                del slot_of[content[s]]
                counts.evictions += step >= start
            counts.admissions += step >= start
            content[s] = x
            slot_of[x] = s
            leased.add(s)
        if masks is not None:
            masks.append(mask)
    return counts


def heat(sequence, slots, half_life=4.0, masks=None):
    h = Heat(max(half_life * slots, 1e-9))
    return run_scored(sequence, slots, h.use, lambda x: h.of[x], masks)


def lfu(sequence, slots):
    uses = collections.Counter()
    return run_scored(sequence, slots, uses.update, lambda x: uses[x])


def lru_curve(sequence, most):
    """Counts for every capacity 0..most by stack distance.  A use brings its experts to the top in id order."""
    stack, at, distinct = [], collections.Counter(), 0
    for ids in sequence:
        for x in ids:
            if x in stack:
                at[stack.index(x)] += 1
            else:
                distinct += 1
        for x in ids:
            if x in stack:
                stack.remove(x)
            stack.insert(0, x)
    total, result, hits = sum(len(ids) for ids in sequence), [], 0
    for slots in range(most + 1):
        c = Counts()
        c.hits, c.admissions = hits, total - hits if slots else 0
        c.evictions = max(0, c.admissions - min(slots, distinct))
        result.append(c)
        hits += at[slots]
    return result


def pinned(sequence, slots, pins, training):
    """After training, the `pins` most used experts are always there."""
    uses = collections.Counter(x for ids in sequence[:training] for x in ids)
    kept = {x for x, _ in sorted(uses.items(), key=lambda p: (-p[1], p[0]))[:pins]}
    rest = [tuple(x for x in ids if x not in kept) for ids in sequence]
    counts = Counts()
    counts.hits = sum(len(ids) for ids in sequence[training:]) - sum(len(ids) for ids in rest[training:])
    clock, last = [0], {}

    def use(ids):
        for x in ids:
            clock[0] += 1
            last[x] = clock[0]

    return counts.add(run_scored(rest, slots - pins, use, lambda x: last[x], start=training))


def s3fifo(sequence, slots):
    counts = Counts()
    small, main, ghost, uses = collections.deque(), collections.deque(), collections.OrderedDict(), {}
    for ids in sequence:
        missing = [x for x in ids if x not in uses]
        counts.hits += len(ids) - len(missing)
        for x in ids:
            if x in uses:
                uses[x] = min(3, uses[x] + 1)
        for x in missing:
            if len(uses) >= slots:
                if not s3fifo_evict(small, main, ghost, uses, set(ids), slots):
                    continue
                counts.evictions += 1
            (main if ghost.pop(x, None) else small).append(x)
            uses[x] = 0
            counts.admissions += 1
    return counts


def s3fifo_evict(small, main, ghost, uses, need, slots):
    while True:
        usable = [q for q in (small, main) if any(x not in need for x in q)]
        if not usable:
            return False
        queue = small if len(usable) == 2 and len(small) >= max(1, slots // 10) else usable[-1]
        x = queue.popleft()
        if x in need:
            queue.append(x)
        elif uses[x] > 0:
            uses[x] = 0 if queue is small else uses[x] - 1
            main.append(x)
        else:
            if queue is small:
                ghost[x] = True
                while len(ghost) > slots:
                    ghost.popitem(last=False)
            del uses[x]
            return True


def lecar(sequence, slots, seed=1):
    """LRU and LFU victims, chosen by weights that regret moves."""
    counts, rng = Counts(), random.Random(seed)
    rate, discount = 0.45, 0.005 ** (1 / max(slots, 1))
    weight = [0.5, 0.5]
    last, uses, here = {}, collections.Counter(), set()
    ghosts = [collections.OrderedDict(), collections.OrderedDict()]
    clock = 0
    for ids in sequence:
        missing = [x for x in ids if x not in here]
        counts.hits += len(ids) - len(missing)
        for x in ids:
            clock += 1
            last[x] = clock
            uses[x] += 1
        for x in missing:
            for which in (0, 1):
                if x in ghosts[which]:
                    weight[1 - which] *= math.exp(rate * discount ** (clock - ghosts[which].pop(x)))
                    total = sum(weight)
                    weight = [w / total for w in weight]
            if len(here) >= slots:
                free = [y for y in here if y not in ids]
                if not free:
                    continue
                which = 0 if rng.random() < weight[0] else 1
                y = min(free, key=(lambda y: (last[y], y)) if which == 0 else (lambda y: (uses[y], last[y], y)))
                here.remove(y)
                ghosts[which][y] = clock
                if len(ghosts[which]) > slots:
                    ghosts[which].popitem(last=False)
                counts.evictions += 1
            here.add(x)
            counts.admissions += 1
    return counts


def belady(sequence, slots):
    counts, future = Counts(), collections.defaultdict(collections.deque)
    for step, ids in enumerate(sequence):
        for x in ids:
            future[x].append(step)
    here = set()
    for ids in sequence:
        missing = [x for x in ids if x not in here]
        counts.hits += len(ids) - len(missing)
        for x in ids:
            future[x].popleft()

        def upcoming(x):
            return future[x][0] if future[x] else math.inf

        for x in sorted(missing, key=lambda x: (upcoming(x), x)):
            if len(here) >= slots:
                free = [y for y in here if y not in ids]
                if not free:
                    continue
                y = max(free, key=lambda y: (upcoming(y), y))
                if upcoming(y) <= upcoming(x):
                    continue
                here.remove(y)
                counts.evictions += 1
            here.add(x)
            counts.admissions += 1
    return counts


def over_layers(trace, run):
    total = Counts()
    for sequence in trace.routes:
        total.add(run(sequence))
    return total


def interleaved(trace):
    """One sequence for all layers: (layer, id) in the order of evaluation."""
    return [tuple((l, x) for x in trace.routes[l][t]) for t in range(trace.tokens) for l in range(trace.layers)]


class HotSet:
    """Slots of all layers together: the lowest score goes.  A heap with outdated entries, as there are many slots."""

    def __init__(self, slots, use, score):
        self.slots, self.use, self.score = slots, use, score

    def run(self, sequence):
        counts, here, heap, serial = Counts(), {}, [], 0
        for ids in sequence:
            self.use(ids)
            missing = [x for x in ids if x not in here]
            counts.hits += len(ids) - len(missing)
            for x in ids:
                serial += 1
                if x not in here:
                    continue
                here[x] = serial
                heapq.heappush(heap, (self.score(x), serial, x))
            aside = []
            for x in missing:
                if len(here) >= self.slots:
                    victim = None
                    while heap:
                        s, n, y = heapq.heappop(heap)
                        if here.get(y) != n:
                            continue
                        if y in ids:
                            aside.append((s, n, y))
                            continue
                        victim = y
                        break
                    if victim is None:
                        continue
                    del here[victim]
                    counts.evictions += 1
                serial += 1
                here[x] = serial
                heapq.heappush(heap, (self.score(x), serial, x))
                counts.admissions += 1
            for entry in aside:
                heapq.heappush(heap, entry)
        return counts


def global_lru(trace, slots):
    clock, last = [0], {}

    def use(ids):
        for x in ids:
            clock[0] += 1
            last[x] = clock[0]

    return HotSet(slots * trace.layers, use, lambda x: last[x]).run(interleaved(trace))


def global_heat(trace, slots, half_life):
    h = Heat(half_life * slots * trace.layers)
    if trace.accesses / h.half_uses > 390:  # entries of the heap must stay of one scale
        raise Bad("--policies: the trace is too long for global-heat")
    return HotSet(slots * trace.layers, h.use, lambda x: h.of[x]).run(interleaved(trace))


def fixed_total(curves, total, least, most):
    """Slots a layer: most hits, then fewest admissions, then fewest evictions, then the smallest vector."""
    best = {0: ((0, 0, 0), ())}
    for i, curve in enumerate(curves):
        later = len(curves) - i - 1
        nxt = {}
        for used, (value, vector) in best.items():
            for slots in range(least, min(most, len(curve) - 1) + 1):
                left = total - used - slots
                if left < later * least:
                    break
                if left > later * most:
                    continue
                c = curve[slots]
                v = (value[0] + c.hits, value[1] - c.admissions, value[2] - c.evictions)
                old = nxt.get(used + slots)
                if old is None or v > old[0] or (v == old[0] and vector + (slots,) < old[1]):
                    nxt[used + slots] = (v, vector + (slots,))
        best = nxt
    if total not in best:
        raise Bad(f"--total-slots {total}: cannot be split over {len(curves)} layers of {least} to {most} slots")
    (hits, admissions, evictions), vector = best[total]
    return {"hits": hits, "admissions": -admissions, "evictions": -evictions, "slots": list(vector)}


# ---------------------------------------------------------------------------------------------------- gate


def gate(trace, observed):
    """Raises Bad unless the capture is complete and its masks are those of the product's policy."""
    head, end = trace.head, trace.end
    if head["slots"] != observed:
        raise Bad(f"{trace.name}: --observed-capacity {observed}: the capture was made with {head['slots']} slots")
    if not isinstance(end, dict):
        raise Bad(f"{trace.name}: no end: the capture is not complete")
    if end.get("tokens") != trace.tokens:
        raise Bad(f"{trace.name}: end: expected {trace.tokens} tokens, found {end.get('tokens')}")
    for l, sequence in enumerate(trace.routes):
        for t, ids in enumerate(sequence):
            if len(ids) != head["top_k"]:
                raise Bad(f"{trace.name}: token {t}, layer {head['layers'][l]}: expected {head['top_k']} experts, "
                          f"found {len(ids)}")
    recorded = 0
    for t, masks in enumerate(trace.masks):
        if not isinstance(masks, list) or len(masks) != trace.layers or not all(is_count(m) for m in masks):
            raise Bad(f"{trace.name}: token {t}: hits: expected a mask for each of {trace.layers} layers")
        if any(m >> head["top_k"] for m in masks):
            raise Bad(f"{trace.name}: token {t}: hits: a mask has more than {head['top_k']} bits")
        recorded += sum(bin(m).count("1") for m in masks)
    sums = {"accesses": trace.accesses, "hits": recorded}
    for key, value in sums.items():
        if end.get(key) != value:
            raise Bad(f"{trace.name}: end: {key}: expected {value}, the sum of the lines, found {end.get(key)}")
    if not is_count(end.get("fills")) or not is_count(end.get("streams")) or \
            end["hits"] + end["fills"] + end["streams"] != trace.accesses:
        raise Bad(f"{trace.name}: end: expected hits + fills + streams = accesses")
    wrong = 0
    for l, sequence in enumerate(trace.routes):
        masks = []
        heat(sequence, observed, float(head["half_life"]), masks)
        wrong += sum(masks[t] != trace.masks[t][l] for t in range(trace.tokens))
    if wrong:
        raise Bad(f"{trace.name}: {wrong} of {trace.tokens * trace.layers} masks of hits are not those of an empty cache "
                  f"of {observed} slots: the capture cannot be trusted")


# ---------------------------------------------------------------------------------------------------- report


def reuse(trace):
    again = total = 0
    for sequence in trace.routes:
        for a, b in zip(sequence, sequence[1:]):
            again += len(set(a) & set(b))
            total += len(b)
    return again / total if total else 0.0


def figures(counts, accesses):
    return {"hits": counts.hits, "admissions": counts.admissions, "evictions": counts.evictions,
            "hit_rate": round(counts.hits / accesses, 6) if accesses else 0.0}


POLICIES = ("lru", "heat", "lfu", "s3fifo", "lecar", "global-lru", "global-heat", "belady")


def run_policy(trace, name, slots, half_life, curves):
    if name == "lru":
        total = Counts()
        for curve in curves:
            total.add(curve[slots])
        return total
    if name == "global-lru":
        return global_lru(trace, slots)
    if name == "global-heat":
        return global_heat(trace, slots, half_life)
    layerwise = {"heat": lambda s: heat(s, slots, half_life), "lfu": lambda s: lfu(s, slots),
                 "s3fifo": lambda s: s3fifo(s, slots), "lecar": lambda s: lecar(s, slots),
                 "belady": lambda s: belady(s, slots)}
    return over_layers(trace, layerwise[name])


def number_list(text, name, least, most):
    try:
        values = sorted({int(x) for x in text.split(",")})
    except ValueError as e:
        raise Bad(f"{name}: expected numbers separated by commas, found '{text}'") from e
    if values[0] < least or values[-1] > most:
        raise Bad(f"{name}: expected {least} to {most}, found '{text}'")
    return values


def analyse(args, trace, trusted):
    most = trace.experts
    observed = args.observed_capacity if trusted else None
    default = sorted({observed} if observed else {min(most, trace.top_k * f) for f in (1, 2, 4, 8)})
    capacities = number_list(args.capacities, "--capacities", trace.top_k, most) if args.capacities else default
    if observed is not None and observed not in capacities:
        raise Bad(f"--capacities: must contain the observed capacity {observed}")
    if observed is not None and max(capacities) > observed and not args.fresh_empty_source:
        raise Bad("--capacities: more than the observed capacity needs --fresh-empty-source: what a larger cache would "
                  "have held before the capture is unknown")
    policies = args.policies.split(",")
    for p in policies:
        if p not in POLICIES:
            raise Bad(f"--policies: expected some of {', '.join(POLICIES)}, found '{p}'")
    curves = [lru_curve(sequence, most) for sequence in trace.routes]
    report = {"input": {"name": trace.name, "sha256": trace.digest}, "trusted": trusted, "tokens": trace.tokens,
              "layers": trace.layers, "experts": trace.experts, "top_k": trace.top_k, "accesses": trace.accesses,
              "next_token_reuse": round(reuse(trace), 6), "half_life": args.half_life, "policies": {}}
    for p in policies:
        report["policies"][p] = {"oracle": p == "belady", "capacities": {
            str(c): figures(run_policy(trace, p, c, args.half_life, curves), trace.accesses) for c in capacities}}
    if args.pin_counts:
        add_pinned(args, trace, report, capacities)
    if args.marginal_range:
        add_marginal(args, report, curves, most)
    if args.total_slots:
        least, top = args.min_layer_slots, min(args.max_layer_slots or most, most)
        best = fixed_total(curves, args.total_slots, least, top)
        best["hit_rate"] = round(best["hits"] / trace.accesses, 6)
        report["fixed_total"] = {"oracle": True, "total_slots": args.total_slots, **best}
    return report


def add_pinned(args, trace, report, capacities):
    training = args.training_steps if args.training_steps is not None else trace.tokens // 2
    if not 0 < training < trace.tokens:
        raise Bad(f"--training-steps: expected 1 to {trace.tokens - 1}, found {training}")
    judged = sum(len(ids) for layer in trace.routes for ids in layer[training:])
    out = report["pinned"] = {"training_steps": training, "oracle": False, "capacities": {}}
    for c in capacities:
        pins = [n for n in number_list(args.pin_counts, "--pin-counts", 0, trace.experts) if n < c]
        out["capacities"][str(c)] = {str(n): figures(over_layers(trace, lambda s: pinned(s, c, n, training)), judged)
                                     for n in pins}


def add_marginal(args, report, curves, most):
    try:
        first, last = (int(x) for x in args.marginal_range.split(":"))
    except ValueError as e:
        raise Bad("--marginal-range: expected A:B") from e
    if not 0 <= first < last <= most:
        raise Bad(f"--marginal-range: expected 0 <= A < B <= {most}")
    report["marginal_lru_hits"] = {str(l): [curve[s + 1].hits - curve[s].hits for s in range(first, last)]
                                   for l, curve in enumerate(curves)}


def as_text(report):
    trust = "passed the gate" if report["trusted"] else "routes only: nothing vouches for them"
    lines = [f"{report['input']['name']} (sha256 {report['input']['sha256'][:16]}): {trust}",
             f"{report['tokens']} tokens, {report['layers']} layers, {report['top_k']} of {report['experts']} experts; "
             f"the next token uses {100 * report['next_token_reuse']:.1f} % again", ""]
    capacities = list(next(iter(report["policies"].values()))["capacities"])
    lines.append("hit rate %    " + "".join(f"{c:>8}" for c in capacities))
    for name, p in report["policies"].items():
        rates = "".join(f"{100 * p['capacities'][c]['hit_rate']:8.2f}" for c in capacities)
        lines.append(f"{name:<14}{rates}" + ("  oracle, not promotable" if p["oracle"] else ""))
    for c, pins in report.get("pinned", {}).get("capacities", {}).items():
        for n, f in pins.items():
            lines.append(f"pinned {n:>3} of {c:>3} slots, after {report['pinned']['training_steps']} tokens: "
                         f"{100 * f['hit_rate']:.2f}")
    if "fixed_total" in report:
        f = report["fixed_total"]
        lines.append(f"fixed total of {f['total_slots']}: {100 * f['hit_rate']:.2f}, slots {f['slots']}  oracle, "
                     "not promotable")
    return "\n".join(lines) + "\n"


def as_csv(report):
    lines = ["policy,oracle,capacity,hits,admissions,evictions,hit_rate"]
    for name, p in report["policies"].items():
        for c, f in p["capacities"].items():
            lines.append(f"{name},{int(p['oracle'])},{c},{f['hits']},{f['admissions']},{f['evictions']},"
                         f"{f['hit_rate']}")
    return "\n".join(lines) + "\n"


def write_private(path, text):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as f:
        f.write(text)


def report_command(args):
    if (args.run_dir is None) == (args.routes is None):
        raise Bad("give either RUN_DIR or --routes FILE")
    if args.half_life <= 0:
        raise Bad("--half-life: expected more than 0")
    trusted = args.routes is None
    if trusted:
        if args.observed_capacity is None:
            raise Bad("--observed-capacity: needed with a capture")
        if os.path.basename(args.capture) != args.capture:
            raise Bad("--capture: expected a name inside RUN_DIR")
        trace = read_trace(os.path.join(args.run_dir, args.capture), False)
        gate(trace, args.observed_capacity)
    else:
        trace = read_trace(args.routes, True)
    report = analyse(args, trace, trusted)
    text = as_text(report)
    if args.out:
        os.mkdir(args.out, 0o700)
        write_private(os.path.join(args.out, "report.json"), json.dumps(report, indent=1) + "\n")
        write_private(os.path.join(args.out, "report.csv"), as_csv(report))
        write_private(os.path.join(args.out, "report.txt"), text)
    sys.stdout.write(text)


# ---------------------------------------------------------------------------------------------------- made up routes


def synth_command(args):
    """Popularity of an expert is a fixed factor times one of the topic, which changes every --topic tokens."""
    if not 0 < args.top_k <= args.experts or args.layers < 1 or args.tokens < 1 or not 0 <= args.reuse < 1:
        raise Bad("synth: expected top-k up to experts, at least one layer and token, 0 <= reuse < 1")
    rng = random.Random(args.seed)
    layers = []
    for _ in range(args.layers):
        fixed = [rng.lognormvariate(0, args.skew) for _ in range(args.experts)]
        before, sequence, weights = [], [], []
        for t in range(args.tokens):
            if t % args.topic == 0:
                weights = [f * rng.lognormvariate(0, args.topic_skew) for f in fixed]
            now = {x for x in before if rng.random() < args.reuse}
            while len(now) < args.top_k:
                now.add(rng.choices(range(args.experts), weights)[0])
            before = sorted(now)
            sequence.append(before)
        layers.append(sequence)
    text = "".join(json.dumps({"tok": t, "layers": [s[t] for s in layers]}, separators=(",", ":")) + "\n"
                   for t in range(args.tokens))
    write_private(args.out, text)


def parse(argv):
    p = argparse.ArgumentParser(prog="analyze_decode_cache.py", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    commands = p.add_subparsers(dest="command", required=True)
    r = commands.add_parser("report", allow_abbrev=False, help="replay a trace against policies")
    r.add_argument("run_dir", nargs="?", metavar="RUN_DIR")
    r.add_argument("--capture", default="routes.jsonl", help="trace in RUN_DIR (default: routes.jsonl)")
    r.add_argument("--observed-capacity", type=int, help="slots a layer of the capture")
    r.add_argument("--fresh-empty-source", action="store_true",
                   help="the capture began with an empty cache, so larger ones can be replayed")
    r.add_argument("--routes", metavar="FILE", help="bare routes instead of a capture")
    r.add_argument("--capacities", metavar="LIST",
                   help="slots a layer (default: the observed one; else 1, 2, 4, 8 times top-k)")
    r.add_argument("--policies", default=",".join(POLICIES), metavar="LIST")
    r.add_argument("--half-life", type=float, default=4.0, help="of heat, in uses a slot (default: 4)")
    r.add_argument("--marginal-range", metavar="A:B", help="hits that each further slot of a layer adds, LRU")
    r.add_argument("--total-slots", type=int, help="split over the layers as well as can be")
    r.add_argument("--min-layer-slots", type=int, default=1)
    r.add_argument("--max-layer-slots", type=int)
    r.add_argument("--pin-counts", metavar="LIST", help="pinned experts a layer")
    r.add_argument("--training-steps", type=int, help="tokens that choose the pinned ones (default: half)")
    r.add_argument("--out", metavar="DIR", help="new folder for report.json, .csv and .txt")
    s = commands.add_parser("synth", allow_abbrev=False, help="make routes up")
    s.add_argument("--out", required=True, metavar="FILE")
    for name, value in (("layers", 8), ("experts", 896), ("top-k", 16), ("tokens", 400), ("topic", 150), ("seed", 1)):
        s.add_argument("--" + name, type=int, default=value)
    for name, value in (("reuse", 0.25), ("skew", 0.6), ("topic-skew", 1.0)):
        s.add_argument("--" + name, type=float, default=value)
    return p.parse_args(argv)


def main(argv):
    args = parse(argv)
    try:
        (report_command if args.command == "report" else synth_command)(args)
        sys.stdout.flush()
    except Bad as e:
        print(f"analyze_decode_cache.py: {e}", file=sys.stderr)
        return 1
    except OSError as e:
        print(f"analyze_decode_cache.py: {e.filename or 'output'}: {e.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
