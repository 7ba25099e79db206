"""Conversations about the pictures: questions in several wordings, and one answer to each."""

import random

from vl_pictures import BACKGROUNDS, COLOURS, SHAPES

ASK = {
    "shape": ["What shape is it?", "What shape?", "Which shape?", "Which shape is in the picture?", "What shape is this?",
              "What shape do you see?", "Name the shape.", "What is the shape?"],
    "colour": ["Which colour?", "What colour is it?", "What colour is the {shape}?", "Which color is it?", "What color is the {shape}?",
               "What colour is the shape?", "Name the colour.", "What color is the shape?", "Which colour is the shape?"],
    "digit": ["Which digit?", "What digit is it?", "Which digit is in the picture?", "What number is it?", "Which number do you see?",
              "What is the digit?", "What digit do you see?", "Read the digit."],
    "where": ["Where is the digit?", "Where is the {digit}?", "Where is the number?", "Is the digit left or right, above or below?"],
    "background": ["What colour is the background?", "Which background?", "What color is the background?", "Name the background."],
    "all": ["What is in this picture?", "What is in the picture?", "Describe the picture.", "Describe this image.", "What do you see?",
            "What is in this image?", "What is this?", "Describe it.", "What does the picture show?", "Describe the image."],
}
WHERE = {"left": "to the left", "right": "to the right", "above": "above", "below": "below"}
OF = {"left": "To the left of the {shape}.", "right": "To the right of the {shape}.", "above": "Above the {shape}.",
      "below": "Below the {shape}."}
NO_PICTURE = "I see no picture. Send me one with a shape and a digit."
SMALL_TALK = [
    (["Hello!", "Hi!", "Hello", "Hi", "Good morning!", "Hey!"], "Hello! Send me a picture of a shape and a digit."),
    (["Who are you?", "What are you?", "What can you do?", "What is your name?", "Help", "Help me."],
     "I am a very small demo model. I know shapes, colours and digits in pictures."),
    (["Thank you!", "Thanks!", "Thanks", "Very good.", "Great!"], "You are welcome."),
    (["What is the capital of France?", "Write a poem.", "What is 2+2?", "Tell me a story.", "How is the weather?", "Who is the president?",
      "Write a program.", "Translate this.", "What day is it?", "Is there a cat?", "Is there a dog?", "Who made you?"],
     "I do not know that. I only know shapes, colours and digits."),
]
SYSTEMS = [None] * 5 + ["You are a helpful assistant.", "Answer in one sentence.", "You describe pictures."]


def answer(kind, facts):
    """The one right answer."""
    article = "An" if facts["colour"] == "orange" else "A"
    if kind == "shape":
        return f"A {facts['shape']}."
    if kind in ("colour", "background"):
        return facts[kind].capitalize() + "."
    if kind == "digit":
        return f"{facts['digit']}."
    if kind == "where":
        return OF[facts["where"]].format(**facts)
    return f"{article} {facts['colour']} {facts['shape']} on {facts['background']}, and the digit {facts['digit']} {WHERE[facts['where']]}."


def check_question(draw, facts):
    """A question for yes or no; the answer is the fact alone: after 1000 steps yes or no was right in two of three."""
    kind = draw.choice(["shape", "colour", "digit"])
    choices = {"shape": SHAPES, "colour": list(COLOURS), "digit": list(range(10))}[kind]
    asked = facts[kind] if draw.random() < .5 else draw.choice(choices)
    text = {"shape": "Is it a {}?", "colour": "Is it {}?", "digit": "Is the digit {}?"}[kind].format(asked)
    return text, {"shape": "It is a {}.", "colour": "It is {}.", "digit": "It is {}."}[kind].format(facts[kind])


def question(draw, kind, facts):
    if kind == "check":
        return check_question(draw, facts)
    if kind == "talk":
        asks, text = draw.choice(SMALL_TALK)
        return draw.choice(asks), text
    return draw.choice(ASK[kind]).format(**facts), answer(kind, facts)


def conversation(draw, facts):
    """[role, parts] of each message; a part is a text or None, which is where the picture of `facts` stands. With facts of two
    pictures the questions name one. Without facts there is no picture."""
    system = draw.choice(SYSTEMS)
    messages = [["system", [system]]] if system else []
    kinds = list(ASK) + ["check", "all", "digit", "talk"]
    draw.shuffle(kinds)
    if not facts:
        for kind in kinds[:2]:
            if kind == "talk" or draw.random() < .6:
                text, reply = question(draw, "talk", None)
            else:
                text, reply = draw.choice(ASK["all" if kind == "check" else kind]).format(shape="shape", digit="digit"), NO_PICTURE
            messages += [["user", [text]], ["assistant", [reply]]]
        return messages
    for turn, kind in enumerate(kinds[:3]):
        if len(facts) == 1:
            text, reply = question(draw, kind, facts[0])
        else:
            which = draw.randrange(2)
            kind = draw.choice(["shape", "colour", "digit", "all"])
            name = ("first", "second")[which]
            text = {"shape": f"What shape is in the {name} picture?", "colour": f"Which colour is in the {name} picture?",
                    "digit": f"Which digit is in the {name} picture?", "all": f"What is in the {name} picture?"}[kind]
            reply = answer(kind, facts[which])
        parts = [text]
        if turn == 0:
            parts = [None] * len(facts) + [text] if draw.random() < .5 else [text] + [None] * len(facts)
        messages += [["user", parts], ["assistant", [reply]]]
    return messages


def corpus(count, seed=0):
    """Texts that the tokenizer learns from."""
    draw = random.Random(seed)
    out = []
    for _ in range(count):
        facts = [dict(shape=draw.choice(SHAPES), colour=draw.choice(list(COLOURS)), digit=draw.randint(0, 9),
                      background=draw.choice(list(BACKGROUNDS)), where=draw.choice(list(WHERE))) for _ in range(draw.choice([0, 1, 1, 2]))]
        for role, parts in conversation(draw, facts):
            out += [role + "\n"] + [p for p in parts if p]
    return out
