"""Word lists shared by the recipe: what counts as a content word, and how words are found in a story."""

import re

# Function words and words so common in children's stories that asking for them says nothing.
STOP = set("""
a about after again all also always am an and any anything are around as asked at away back be because been before being
both but by came can come could day did didn do does doesn don done down each end enough even ever every everyone everything
felt find first for found from gave get give go going gone got had has have having he hear heard her here him himself his how
if in inside into is isn it its just keep kept knew know laughed learned let like liked little long look looked lot
loved made make many maybe me mom more most much must my near need needed never new next not nothing now of off oh okay on once
one only or other others our out over own part play played playing put ran really remember right said same saw say saying
see seem seemed she should show side smiled so some someone something soon started still stop stopped such sure take that the
their them then there these they thing things think this those thought through time to together told too took tried try turn
two under until up upon us use used very wait walked want wanted was wasn way we well went were what when where which
while who why will with without won would yes you your called became become began decided help helped happy sad big named
lived long girl boy friends friend mommy daddy dad moral hers theirs yours instead else another anymore whole quite maybe
""".split())

# Heroes and their qualities, for stories that open with something else than a girl named Lily.
HEROES = """dog cat bird bear rabbit frog fish lion mouse duck horse cow pig bee spider monkey elephant king queen princess prince dragon
robot boat train car truck tree flower moon star cloud doll ball kite hat boy man woman girl baby farmer fox owl turtle snake wolf
squirrel butterfly puppy kitten bus plane balloon rock teddy wizard witch pirate nurse doctor teacher bug sheep goat chicken
shark whale tiger giraffe zebra snail worm ghost clown cook bike ship leaf box lamp river sun""".split()
QUALITIES = """brave big small red blue happy sad kind funny lazy shy old young fast slow hungry tiny clever gentle angry quiet proud lonely
silly curious green yellow pretty strong tired wise friendly scared special magic pink black white fat good lost""".split()

WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")


def words_of(text):
    """The words of a text in lower case, in order."""
    return [w.lower() for w in WORD.findall(text)]


def uses(text, word):
    """True where the story holds the word itself or its plain plural, past or -ing form."""
    have = set(words_of(text))
    return any(form in have for form in forms(word))


def forms(word):
    """The word and its regular inflections."""
    out = {word, word + "s", word + "es", word + "ed", word + "d", word + "ing", word + "'s"}
    if word.endswith("y"):
        out |= {word[:-1] + "ies", word[:-1] + "ied"}
    if word.endswith("e"):
        out.add(word[:-1] + "ing")
    if len(word) > 2:
        out |= {word + word[-1] + "ed", word + word[-1] + "ing"}
    return out


def content_words(text):
    """The content words of a story: lower-case words that are no function words and never appear capitalised mid-sentence."""
    names = set(re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", text))
    names = {n.lower() for n in names}
    seen, out = set(), []
    for w in words_of(text):
        if len(w) > 2 and "'" not in w and w not in STOP and w not in names and w not in seen:
            seen.add(w)
            out.append(w)
    return out
