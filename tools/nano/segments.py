"""A rendered conversation: segments (text, is a control token, part).

Each text is encoded by itself, so where a format's texts are cut decides its ids.
"""
CONTEXT, REPLY, GIVEN = 0, 1, 2  # parts: what the model reads; what it writes; what stands in for writing


class Segments(list):
    """`joined`: text between two control tokens is one segment."""

    def __init__(self, joined):
        super().__init__()
        self.joined = joined

    def control(self, name, part=CONTEXT):
        self.append((name, True, part))

    def text(self, text, part=CONTEXT):
        if not text:
            return
        if self.joined and self and not self[-1][1] and self[-1][2] == part:
            text = self.pop()[0] + text
        self.append((text, False, part))
