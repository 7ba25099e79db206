"""Everyday words by class, and stories changed by rule so that only the request foretells their first sentences.

The story model's stories are much alike: a student of them guesses how one begins and hardly reads the request.  Here things, animals,
places and colours are exchanged for others of their class, and heroes get other qualities, pastimes and belongings, all at random.
"""

import re

CLASSES = {
    "walker": """dog cat bear rabbit frog horse cow pig mouse monkey elephant lion tiger squirrel fox turtle snake wolf puppy kitten sheep goat
        giraffe zebra deer pony hamster lizard panda kangaroo hippo dinosaur hedgehog donkey camel""",
    "flyer": "bird duck bee butterfly owl hen chicken parrot penguin goose ladybug swan dragon eagle bug crow",
    "swimmer": "fish whale shark dolphin crab octopus seal",
    "crawler": "spider ant snail worm caterpillar",
    "person": """king queen prince princess farmer teacher doctor nurse fairy wizard pirate clown witch baker sailor knight giant
        grandma grandpa baby singer robot monster ghost""",
    "toy": "ball doll kite drum balloon puzzle toy guitar block swing slide teddy yo-yo puppet whistle",
    "food": "apple banana cake cookie carrot orange pear sandwich pizza pie egg lemon pumpkin potato tomato cupcake pancake candy",
    "mass": "soup bread milk honey cheese jam rice juice chocolate water sand paint",
    "ride": "boat train car truck ship bike bus plane rocket wagon tractor sled",
    "home": "table chair bed blanket door key lamp pillow box basket clock mirror window cup spoon bottle bag bucket ladder rope broom candle umbrella",
    "wear": "hat shoe coat dress scarf ring sock crown glove",
    "small": "book picture map shell flower leaf stone rock feather stick pencil coin seed nest bell flag gift letter camera nut rose mushroom acorn",
    "sight": "tree star cloud rainbow statue tower fence bridge",
    "sky": "moon sun",
    "weather": "rain snow wind storm",
    "idea": "wish treasure surprise secret song dream game story dance party plan noise",
    "place": """garden forest river lake beach park farm barn zoo house castle island road hill mountain school shop store pond cave field
        market village jungle kitchen sea desert city library""",
    "colour": "red blue green yellow purple pink white black brown golden orange",
    "size": "big tiny small tall huge little",
    "thing": "old new shiny soft warm cold lost heavy broken round pretty loud strange wet dirty beautiful magic special hot sweet",
    "mood": "happy sad scared angry hungry sleepy tired lonely excited proud curious worried bored thirsty",
    "nature": "brave kind gentle funny quiet clever silly lazy shy friendly wise strong fast slow young smart careful polite",
    "verb": """jump run climb sing dance swim fly hide share help paint cook clean build fix laugh cry sleep read draw dig skip
        explore travel bake fish whisper write count splash race shout smile eat roll hop learn listen catch throw wave whistle""",
}
CLASSES = {k: v.split() for k, v in CLASSES.items()}
OBJECT = ("toy", "food", "ride", "home", "wear", "small")


def an(phrase):
    """The phrase with its indefinite article."""
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


SWAPPED = ("walker", "flyer", "swimmer", "crawler", "toy", "food", "home", "wear", "small", "place", "colour")
PEOPLE = "farmer teacher doctor nurse wizard pirate clown baker sailor singer robot monster ghost".split()
MATES = {w: CLASSES[k] for k in SWAPPED for w in CLASSES[k] if w not in ("teddy", "rose", "swing", "slide", "yo-yo")}
MATES.update({w: PEOPLE for w in PEOPLE})
PLURALS = {"mouse": "mice", "goose": "geese", "wolf": "wolves", "scarf": "scarves", "leaf": "leaves"}


def plural(word):
    if word in PLURALS:
        return PLURALS[word]
    if word[-1] == "y" and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "sh", "ch", "x", "tomato", "potato")) else "" if word in ("fish", "sheep", "deer") else "s")


def swap(text, old, new):
    """The text with one noun or colour for another everywhere, plurals and articles included; None where it may be a verb there."""
    if re.search(rf"\b(?:to|can|could|would|will|not|and|I|you|we|they) {old}\b|\b{old}(?:ed|ing)\b|\b(?:{new}|{plural(new)})\b|\b(?:{old}) (?:cream|truck|bear)\b"
                 rf"|\b(?:teddy|ice|hot|{old}) {old}\b", text, re.I):
        return None
    pairs = {old: new, plural(old): plural(new)}
    if plural(old) == old:
        pairs[old] = new

    def put(m):
        article, word = m.group(1) or "", m.group(2)
        out = pairs[word.lower()]
        if article.lower() in ("a ", "an "):
            article = article[0] + ("n " if out[0] in "aeiou" else " ")
        return article + (out[0].upper() + out[1:] if word[0].isupper() else out)

    return re.sub(rf"\b([Aa]n? )?((?:{old}|{plural(old)}))\b", put, text, flags=re.I)


def swapped(story, rng, chance):
    """The story with some of its things, animals and colours changed for others of their class; the new ones are words to ask for."""
    text, words = story["text"], list(story["words"])
    have = [w for w in dict.fromkeys(m.lower() for m in re.findall(r"[A-Za-z]+", text)) if w in MATES]
    for old in have[:6]:
        if rng.random() >= chance:
            continue
        new = rng.choice(MATES[old])
        other = swap(text, old, new) if new not in have and new != old else None
        if other is None or other == text:
            continue
        text = other
        words = [new if w == old else w for w in words] + ([] if old in words else [new])
    return dict(story, text=text, words=words)


KIND = {w: k for k, ws in CLASSES.items() for w in ws}
START = re.compile(r"^(Once upon a time,? (?:there )?(?:was|lived)|Once,? there was|One day,?|There was) (an? )((?:[a-z]+,? )*?)([a-z]+)( named [A-Z][a-z]+)?\.")
LIKED = re.compile(r"\b((?:She|He|They|It|[A-Z][a-z]+) (?:loved|liked|wanted) to )([a-z]+)([^.\n]*)\.")


def woven(story, rng):
    """The story with its first sentences changed by rule: another quality, another pastime, perhaps a thing of the hero's own, other things
    and animals.  What everyday words the first four sentences then hold is taken as drawn."""
    text = swapped(story, rng, 0.7)["text"]
    m = START.match(text)
    if m:
        head, rest = text[:m.end()], text[m.end():]
        if rng.random() < 0.4:
            q = rng.choice(CLASSES["mood"] + CLASSES["nature"] * 2 + CLASSES["colour"] * (m.group(4) in MATES))
            head = f"{m.group(1)} {an(q + ' ' + m.group(4))}{m.group(5) or ''}."
        like = LIKED.match(rest.lstrip())
        if like and rng.random() < 0.6:
            verb = rng.choice(CLASSES["verb"])
            rest = f" {like.group(1)}{verb}." + rest.lstrip()[like.end():]
        she = re.match(r"\s*(She|He|It|They) ", rest)
        if she and rng.random() < 0.45:
            k = rng.choice(OBJECT + ("place", "toy", "food", "home"))
            o = rng.choice(CLASSES[k])
            if rng.random() < 0.35:
                o = rng.choice(CLASSES["colour"] + CLASSES["thing"]) + " " + o
            head += f" {she.group(1)} " + ("lived near " if k == "place" else "had ") + an(o) + "."
        text = head + rest
    end = 0
    for _ in range(4):
        at = re.compile(r"[.!?]\"?\s").search(text, end)
        if not at or at.end() > 420:
            break
        end = at.end()
    have = [w for w in dict.fromkeys(x.lower() for x in re.findall(r"\b[a-z]+\b", text[:end])) if w in KIND and w not in ("little", "big", "fish", "play")]
    have += [w for w in ("little", "big") if re.search(rf"\b{w}\b", text[:end]) and rng.random() < 0.2]
    if not have:
        return dict(story, text=text)
    have = rng.sample(have, min(len(have), rng.choice([1, 2, 2, 3, 3, 3, 4])))
    return {"words": have, "drawn": [(w, KIND[w]) for w in have], "open": max(end - 20, 0), "text": text}
