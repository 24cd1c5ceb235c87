"""Batches of drawn conversations, made by worker processes.

One conversation a row and no packing, so that nothing leaks from one into the next.  Rows are grouped by length into a
few fixed shapes, since a recorded graph has one shape.
"""
import multiprocessing
import random

import numpy

import conversations
from segments import CONTEXT, GIVEN, REPLY

BUCKETS = (64, 128, 256, 512, 1024, 2048, 4096)  # most tokens that are read; a row has one more, the last to predict
WEIGHTS = {CONTEXT: 0.05, REPLY: 1.0, GIVEN: 0.0}  # of a token in the loss
LONG_EVERY, LONG_RECORDS = 6, (40, 190)
SHORT, LONG = 2000, 60  # conversations of one piece of work

worker = {}


def start_worker(layout, folder):
    worker["layout"], worker["tokenizer"] = layout, layout.tokenizer(folder)


def draw_piece(seed):
    """Conversations of one seed as arrays: lengths, ids, and what each id weighs."""
    layout, encode = worker["layout"], worker["tokenizer"].encode
    r = random.Random(seed)
    is_long = seed % LONG_EVERY == 0
    lengths, ids, weights = [], [], []
    for _ in range(LONG if is_long else SHORT):
        records = r.randint(*LONG_RECORDS) if is_long else None
        row, parts = encode(layout.render(conversations.draw(r, layout.bag, layout.options, records)))
        lengths.append(len(row))
        ids += row
        weights += [WEIGHTS[part] for part in parts]
    return numpy.array(lengths), numpy.array(ids, dtype=numpy.uint16), numpy.array(weights, dtype=numpy.float32)


class Batches:
    """Batches of about `tokens` tokens, as arrays (ids int64, weights float32) of shape [rows, bucket + 1]."""

    def __init__(self, layout, folder, tokens, processes, seed=1):
        self.tokens, self.seed, self.pending = tokens, seed, []
        self.rows = {b: [] for b in BUCKETS}
        self.pool = multiprocessing.get_context("fork").Pool(processes, start_worker, (layout, folder))
        self.ahead = 3 * processes

    def close(self):
        self.pool.terminate()

    def fill(self):
        while len(self.pending) < self.ahead:
            self.pending.append(self.pool.apply_async(draw_piece, (self.seed,)))
            self.seed += 1
        lengths, ids, weights = self.pending.pop(0).get()
        at = 0
        for n in lengths:
            bucket = next((b for b in BUCKETS if n <= b + 1), None)
            if bucket:
                self.rows[bucket].append((ids[at:at + n], weights[at:at + n]))
            at += n

    def next(self):
        while True:
            for bucket, rows in self.rows.items():
                need = max(1, self.tokens // bucket)
                if len(rows) >= need:
                    self.rows[bucket] = rows[need:]
                    return self.batch(bucket, rows[:need])
            self.fill()

    @staticmethod
    def batch(bucket, rows):
        ids = numpy.zeros((len(rows), bucket + 1), dtype=numpy.int64)
        weights = numpy.zeros((len(rows), bucket + 1), dtype=numpy.float32)
        for i, (row, its_weights) in enumerate(rows):
            ids[i, :len(row)] = row
            weights[i, :len(row)] = its_weights
        return ids, weights
