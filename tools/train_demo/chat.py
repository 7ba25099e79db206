"""Conversations for the demo model, made from stories by rule: requests with words or phrases from the story, second turns about
it, and a hand-written page of greetings, questions about itself and requests that it has to decline."""

import re

from openings import an, swapped, woven
from words import HEROES, content_words, uses, words_of

ARTICLE_PHRASE = re.compile(r"\b(an?) ((?:[a-z]+ ){0,2}[a-z]+)(?=[.,!?;\"]| (?:and|in|on|with|to|of|for|at|was|who|that|from|named|but|so|is|"
                            r"by|near|had|under|up|down|inside|outside|when|because|together|behind)\b)")
NAMED = re.compile(r"\b(?:an?|the) ((?:[a-z]+ ){0,2}[a-z]+) (?:named|called) ([A-Z][a-z]+)")
LOOSE = {"lot", "while", "bit", "few", "way", "time", "day", "moment", "minute", "long", "little", "big", "good", "new", "very", "same"}

ASK_PLAIN = """Tell me a story.|Tell me a short story.|Can you tell me a story?|Please tell me a story.|I want to hear a story.|Write a short story.
Write a story for children.|Tell me a bedtime story.|Could you tell me a little story, please?|story please|A story, please!|Tell me something nice.
Make up a story.|Do you know a story?|Tell a short story for a child.|Write me a story.|Surprise me with a story.|Give me a short story.|tell me a story
I would like to hear a story.|Yes, please tell me a story.|Yes please!|Please write a short story.|Any story you like.|I am bored. Tell me a story.""".replace("\n", "|").split("|")
ASK_WORDS = """Write a story with the words: {c}.|Write a short story with the words: {c}|Tell me a story with the words {l}.|Tell me a short story with these words: {c}
Write a story that uses the words {l}.|Use the words {l} in a story.|Use these words in a short story: {c}|words: {c}|Words: {c}. Write a story.|{c}
Please write a story with the words {q}.|Can you write a story with {l}?|Make a story out of these words: {c}.|I want a story with the words {l} in it.
Write a short story that has the words {q} in it.|Tell me a story using {l}.|Write a story using the words: {c}.|Story with {l}, please.
Please tell me a story that contains the words {l}.|Write a story with the words {l}|Can you make up a story with the words {c}?|A story with {l}""".replace("\n", "|").split("|")
ASK_ONE = """Write a story with the word {q}.|Tell me a story with the word {w}.|Use the word {q} in a story.|Can you tell a story with the word {w} in it?
Write a short story with the word: {w}|word: {w}|Please use the word {w} in a short story.|{w}""".replace("\n", "|").split("|")
ASK_ABOUT = """Tell me a story about {p}.|Tell me a short story about {p}.|Write a story about {p}.|Write a short story about {p}.|Can you tell me a story about {p}?
I want a story about {p}.|Please tell me a story about {p}.|Make up a story about {p}.|A story about {p}, please.|story about {p}|Tell me about {p}.
I would like to hear a story about {p}.|tell me a story about {p}|Could you write a short story about {p}?|Do you know a story about {p}?
Please write a little story about {p}.|Tell me a bedtime story about {p}.|Write a story for children about {p}.|Give me a story about {p}.""".replace("\n", "|").split("|")
ANOTHER = """Tell me another one.|Another one, please.|One more, please!|Another story, please.|Can you tell me another story?|Tell me one more story.
That was nice. Tell me another one.|Again!|Another one|Tell me a different story.|Now tell me another one.|more|Great! One more.""".replace("\n", "|").split("|")
ANOTHER_ABOUT = """Now tell me a story about {p}.|Tell me another one, about {p}.|Another one about {p}, please.|And now one about {p}.|Now one about {p}
Can you tell me one about {p}?|Now write a story about {p}.""".replace("\n", "|").split("|")
ANOTHER_WORDS = """Now write a story with the words {l}.|Another one, with the words {c}.|And now with the words {c}|Now use the words {l}.
Tell me another one with the words {l}.""".replace("\n", "|").split("|")
BEGIN = """Start a story about {p}.|Begin a story about {p}.|Tell me the beginning of a story about {p}.|Write the first part of a story about {p}.""".split("|")
CONTINUE = """Continue.|continue|Continue the story.|Go on.|Go on, please.|What happened next?|And then?|Please continue.|Tell me more.|What happens next?
Then what happened?|Keep going.|Please go on with the story.""".replace("\n", "|").split("|")
ABOUT_WHAT = """What was the story about?|What is the story about?|What was it about?|Who was the story about?|Can you tell me what the story was about?
Can you sum up the story?|What happened in the story?""".replace("\n", "|").split("|")
WHO = """Who is in the story?|Who was in the story?|What are the names in the story?|What was the name of the {k}?|What is the {k}'s name?|Who is the story about?""".split("|")
TITLE = """Give the story a title.|What is the title of the story?|What should we call the story?|Give it a title.|Can you give the story a name?""".split("|")
MORAL = """What is the moral of the story?|What do we learn from the story?|What is the lesson?|What did they learn?|What can we learn from it?""".split("|")
THANKS = """Thank you!|Thanks!|thanks|Thank you, that was nice.|I liked that story.|That was a good story!|Great story!|Thank you very much.|Nice!|I love it.|Wow, good story""".split("|")
YOU_ARE_WELCOME = ["You're welcome! Tell me if you want another story.", "I'm glad you liked it! Would you like another one?",
                   "You're welcome! I am happy to tell you another one.", "Thank you! Just ask if you want one more story."]
BYE = "Bye!|Goodbye.|Good night!|See you later.|bye|Good night".split("|")
GOODBYE = ["Goodbye! Come back when you want a story.", "Bye! See you soon for another story.", "Good night, and sweet dreams!"]
SYSTEM = ["You are a helpful assistant.", "You are a storyteller for children.", "You tell short stories.", "You are Millrace's demo model.",
          "You are a helpful assistant that tells stories to children."]

ME = "I am Millrace's demo model, a very small language model that tells short stories."
DIALOGUES = [
    ("Hi|Hello|Hello!|Hi there!|Hey|hey there|Good morning!|Good evening|Good afternoon.|hello|hi|Hi!|Hey!|Greetings!|Hello there",
     ["Hello! Would you like to hear a story?", "Hi! I tell short stories. What should the story be about?",
      "Hello! Give me a few words and I will tell you a story with them."]),
    ("How are you?|How are you today?|Hi, how are you?|Hello, how are you doing?|how are you|What's up?|How do you do?",
     ["I am fine, thank you! Would you like to hear a story?", "I am well, thank you! What should I tell a story about?"]),
    ("Who are you?|What are you?|What is your name?|Who are you and what can you do?|Tell me about yourself.|Are you a robot?|who are you|"
     "Are you a person?|Are you human?|What's your name?|Hi, who are you?|Hello! Who are you?|Introduce yourself.|Are you an AI?|what are you",
     [ME + " Give me a few words and I will use them.", ME + " What should I tell you a story about?"]),
    ("What can you do?|What can you do for me?|Help|help|How can you help me?|What do you do?|What can I ask you?|What are you good at?|/help|"
     "What do you know?|How do I use you?|Can you help me?|What are you for?|Hi, what can you do?|Hello! What can you do?",
     ["I can tell short stories. Tell me what the story should be about, or give me a few words that I should use.",
      "I tell short stories for children. Try: Tell me a story about a dog and a red ball."]),
    ("Who made you?|Where do you come from?|How were you trained?|How big are you?|What is Millrace?|Which model are you?|Are you ChatGPT?|"
     "Are you Qwen?|How were you made?|What model is this?|How many parameters do you have?|Who built you?|Who created you?",
     ["I am the demo model of Millrace, an engine that serves language models. I have about six million parameters and I learned from simple stories."]),
    ("What is the capital of France?|What is 2 + 2?|Write a program in Python.|What is the weather today?|Who is the president?|Translate this to German.|"
     "Solve this equation: x + 3 = 7|Explain quantum physics.|What is the meaning of life?|Write an essay about history.|What time is it?|How old is the sun?|"
     "Give me a recipe for soup.|What is the news today?|How do I fix my computer?|Write a poem.|Sing a song.|Tell me a joke.|What is 12 times 9?|"
     "How far is the moon?|Who won the game?|What is a neural network?|Can you code?|Write a letter to my boss.|How much does a car cost?|Why is the sky blue?|"
     "Who wrote Hamlet?|Summarize this article.|What is your favorite color?|Do you like music?|How do airplanes fly?|Can you do math?|What is gravity?|"
     "How many people live in China?|Write code in C++.|What is the square root of 16?|Do you speak Spanish?|Explain how a computer works.|When was the war?",
     ["I am only a small model, and I do not know that. I can tell you a story, if you like.",
      "I do not know that. I only tell short stories. What should I tell you a story about?"]),
    ("Thank you!|Thanks|Thank you very much.|thanks!", ["You're welcome! Would you like to hear a story?"]),
    ("Bye!|Goodbye.|Good night!|See you later.|bye", GOODBYE),
    ("Yes|Yes!|OK|Okay|ok|Sure|no|No.|Nothing|What?|Really?|test|Test|asdf|?|hmm|Why?|lol",
     ["Tell me what the story should be about, or give me a few words, and I will tell you a short story."]),
]
DIALOGUES = [(q.split("|"), a) for q, a in DIALOGUES]


def phrases(text):
    """Phrases such as "a big red ball" that a request can name, in the order of the story."""
    out = []
    for article, body in ARTICLE_PHRASE.findall(text):
        last = body.split()[-1]
        if last not in LOOSE and len(last) > 2 and not last.endswith("ly") and not any(p.split()[-1] == last for p in out):
            out.append(f"{article} {body}")
    return out


def join(items):
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def fill(template, words):
    quoted = [f'"{w}"' for w in words]
    text = template.format(c=", ".join(words), l=join(words), q=join(quoted), w=words[0])
    return text


def loose(rng, text):
    """Users write carelessly now and then."""
    if rng.random() < 0.08:
        text = text.lower()
    if rng.random() < 0.08:
        text = text.rstrip(".!")
    return text


def pick_words(story, rng, rarity, early=False):
    """Words of the story for a request; with `early` mostly words of its first half, and common ones more often than without."""
    if "drawn" in story:
        return rng.sample(story["words"], len(story["words"]))
    words = content_words(story["text"])
    count = min(len(words), rng.choice([1, 2, 2, 3, 3, 3, 4]))
    # Rare words are the ones a user is glad to see again; the nudged ones come first.
    # So are words that the story comes back to.
    every = words_of(story["text"])
    weight = {w: rarity.get(w, 1.0) * (4.0 if w in story["words"] else 1.0) * min(every.count(w), 4) for w in words}
    if early:
        first = set(words_of(story["text"][:len(story["text"]) // 3]))
        weight = {w: weight[w] ** 0.5 * (3.0 if w in story["words"] else 1.0) * (6.0 if w in first else 1.0) for w in words}
    out = []
    while len(out) < count:
        out.append(rng.choices(words, [0 if w in out else weight[w] for w in words])[0])
    return out


def topic(story, rng, rarity):
    """What a request would name: one or two phrases, perhaps the hero."""
    text = story["text"]
    hero = NAMED.search(text)
    items = [p for p in phrases(text) if not hero or p.split()[-1] != hero.group(1).split()[-1]]
    every = words_of(text)
    central = [p for p in items if every.count(p.split()[-1]) > 1]
    if central and rng.random() < 0.8:
        items = central
    chosen = rng.sample(items, min(len(items), rng.choice([1, 1, 2, 2, 3]))) if items else []
    # A story that was opened with a hero of its own is asked for by that hero.
    own = [w for w in story["words"] if w in HEROES and w in every]
    if own and rng.random() < 0.85:
        named = [p for p in items if p.split()[-1] == own[0]]
        first = named[0] if named and rng.random() < 0.7 else ("an " if own[0][0] in "aeiou" else "a ") + own[0]
        return join([first] + [p for p in chosen if p.split()[-1] != own[0]][:rng.choice([0, 0, 1, 2])])
    if hero and rng.random() < 0.4:
        kind, name = hero.groups()
        article = "an" if kind[0] in "aeiou" else "a"
        chosen = [f"{article} {kind} named {name}" if rng.random() < 0.6 else f"{article} {kind}"] + chosen[:2]
    elif not chosen or rng.random() < 0.15:
        words = content_words(text)
        return rng.choices(words, [rarity.get(w, 1.0) for w in words])[0] if words else None
    return join(chosen)


def request_drawn(story, rng):
    """A request for a story that opens with drawn words: mostly the words themselves, in any order."""
    words = [w for w, _ in story["drawn"]]
    opening = story["text"][:story["open"] + 20]
    rng.shuffle(words)
    kind = rng.random()
    if kind < 0.22:  # as things that the story is about
        seen = [p for p in phrases(opening) if any(w in p.split() for w in words)]
        nouns = [w for w, k in story["drawn"] if k not in ("verb", "colour", "size", "thing", "mood", "nature", "mass", "weather", "sky")]
        seen += [an(w) for w in nouns if not any(w in p.split() for p in seen)]
        if seen:
            rng.shuffle(seen)
            return loose(rng, rng.choice(ASK_ABOUT).format(p=join(seen)))
    elif kind < 0.32 and len(words) > 1:
        words.pop()
    elif kind < 0.44 and len(words) < 4:
        more = [w for w in content_words(story["text"][:len(story["text"]) // 2]) if not any(uses(w, d) or uses(d, w) for d in words)]
        words += more and [rng.choice(more)]
        rng.shuffle(words)
    return loose(rng, fill(rng.choice(ASK_ONE if len(words) == 1 and rng.random() < 0.6 else ASK_WORDS), words))


def request(story, rng, rarity, share=None):
    """A request that the story answers; `share` raises the share of requests with words from 0.45, and draws those words early."""
    if "drawn" in story:
        return request_drawn(story, rng)
    kind = rng.random()
    if kind < (0.06 if share else 0.10):
        return loose(rng, rng.choice(ASK_PLAIN))
    if kind < (0.06 + share if share else 0.55):
        words = pick_words(story, rng, rarity, bool(share))
        if words:
            return loose(rng, fill(rng.choice(ASK_ONE if len(words) == 1 else ASK_WORDS), words))
    about = topic(story, rng, rarity)
    return loose(rng, rng.choice(ASK_ABOUT).format(p=about) if about else rng.choice(ASK_PLAIN))


def summary(story, rarity):
    hero = NAMED.search(story["text"])
    words = content_words(story["text"])
    things = [p for p in phrases(story["text"]) if not hero or p.split()[-1] not in hero.group(1)]
    if not hero or not words or not things:
        return None
    kind, name = hero.groups()
    article = "an" if kind[0] in "aeiou" else "a"
    return f"It was about {article} {kind} named {name} and {things[0]}."


def title(story):
    hero = NAMED.search(story["text"])
    things = [p for p in phrases(story["text"]) if not hero or p.split()[-1] not in hero.group(1)]
    if not hero or not things:
        return None
    return f"{hero.group(2)} and the " + " ".join(w.capitalize() for w in things[0].split()[1:])


def moral(story):
    m = re.search(r"[Tt]he moral of the story is (?:that |to )?[^.!]+[.!]|(?:He|She|They|[A-Z][a-z]+) learned (?:that|to|not to) [^.!]+[.!]", story["text"])
    return m.group(0)[0].upper() + m.group(0)[1:] if m else None


def sequel(first, second):
    """What another story tells of a hero of the same name, as the next day of the first one."""
    a, b = NAMED.search(first["text"]), NAMED.search(second["text"])
    at = second["text"].find("One day,")
    if not a or not b or a.group(2) != b.group(2) or at < 0 or len(second["text"]) - at > 900:
        return None
    return "The next day," + second["text"][at + 8:]


def second_turn(story, pool, by_name, rng, rarity):
    """A second exchange after a story: (user, assistant, the story that is now in hand) or None."""
    kind = rng.random()
    if kind < 0.40:
        other = rng.choice(pool)
        form = rng.random()
        if form < 0.4:
            return loose(rng, rng.choice(ANOTHER)), other["text"], other
        if form < 0.7:
            about = topic(other, rng, rarity)
            return (loose(rng, rng.choice(ANOTHER_ABOUT).format(p=about)), other["text"], other) if about else None
        words = pick_words(other, rng, rarity)
        return (fill(rng.choice(ANOTHER_WORDS), words), other["text"], other) if words else None
    hero = NAMED.search(story["text"])
    if kind < 0.55:
        others = by_name.get(hero.group(2), []) if hero else []
        text = sequel(story, rng.choice(others)) if others else None
        return (loose(rng, rng.choice(CONTINUE)), text, story) if text else None
    if kind < 0.70:
        text = summary(story, rarity)
        return (loose(rng, rng.choice(ABOUT_WHAT)), text, story) if text else None
    if kind < 0.78:
        if not hero:
            return None
        return rng.choice(WHO).format(k=hero.group(1).split()[-1]), f"The {hero.group(1).split()[-1]}'s name is {hero.group(2)}.", story
    if kind < 0.85:
        text = title(story)
        return (rng.choice(TITLE), text, story) if text else None
    if kind < 0.92:
        text = moral(story)
        return (rng.choice(MORAL), text, story) if text else None
    if rng.random() < 0.3:
        return rng.choice(BYE), rng.choice(GOODBYE), story
    return loose(rng, rng.choice(THANKS)), rng.choice(YOU_ARE_WELCOME), story


def small_talk(rng):
    questions, answers = rng.choice(DIALOGUES)
    return loose(rng, rng.choice(questions)), rng.choice(answers)


GIRLS = "Anna Mia Lucy Emma Sara Ella Zoe Amy Jane Rose Kate Mary Lisa Nina Molly Bella Grace Ruby Daisy Sue".split()
BOYS = "Tom Ben Sam Max Jack Leo Bob Dan Nick Joe Peter Paul Adam Luke Mark Finn Oscar Billy Sammy Johnny".split()
MOST = {"Lily": GIRLS, "Timmy": BOYS, "Tim": BOYS}


def varied(stories, rng):
    """Fewer stories of the girl named Lily, and other names in most of the stories of the three usual heroes."""
    out = []
    for s in stories:
        hero = NAMED.search(s["text"])
        name = hero.group(2) if hero else None
        if name == "Lily" and rng.random() < 0.6:
            continue
        if name in MOST and rng.random() < 0.65:
            free = [n for n in MOST[name] if n not in s["text"]]
            s = dict(s, text=re.sub(rf"\b{name}\b", rng.choice(free), s["text"]))
        out.append(s)
    return out


def mixed(stories, rng):
    """The stories with things and animals changed for others, most of them with changed first sentences too; see openings.py."""
    return [swapped(s, rng, 0.4) if rng.random() < 0.3 else woven(s, rng) for s in stories]


def rarities(stories):
    """A weight for each word: larger for rarer ones, nothing for words seen once (mostly slips of the teacher)."""
    count = {}
    for s in stories:
        for w in set(words_of(s["text"])):
            count[w] = count.get(w, 0) + 1
    return {w: 0.0001 if n < 3 else (1.0 / (20 + n)) ** 0.5 for w, n in count.items()}


def conversations(stories, rng, share=None):
    """One conversation for each story, and one of small talk for every eight: {"messages": [...]}.  For share see request()."""
    rarity = rarities(stories)
    by_name = {}
    for s in stories:
        hero = NAMED.search(s["text"])
        if hero:
            by_name.setdefault(hero.group(2), []).append(s)
    out = []

    def say(messages, user, assistant):
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]

    for story in stories:
        messages = []
        if rng.random() < 0.12:
            messages.append({"role": "system", "content": rng.choice(SYSTEM)})
        if rng.random() < 0.10:
            say(messages, *small_talk(rng))
        parts = story["text"].split("\n")
        about = topic(story, rng, rarity)
        if len(parts) >= 3 and about and "drawn" not in story and rng.random() < 0.08:
            cut = rng.randrange(1, len(parts) - 1)
            say(messages, rng.choice(BEGIN).format(p=about), "\n".join(parts[:cut]).strip())
            say(messages, loose(rng, rng.choice(CONTINUE)), "\n".join(parts[cut:]).strip())
        else:
            say(messages, request(story, rng, rarity, share), story["text"])
        hand = story
        while rng.random() < (0.12 if share else 0.22):
            turn = second_turn(hand, stories, by_name, rng, rarity)
            if turn:
                say(messages, *turn[:2])
                hand = turn[2]
        out.append({"messages": messages})
    for _ in range(len(stories) // 8):
        messages = []
        if rng.random() < 0.12:
            messages.append({"role": "system", "content": rng.choice(SYSTEM)})
        for _ in range(rng.choice([1, 1, 2])):
            say(messages, *small_talk(rng))
        out.append({"messages": messages})
    rng.shuffle(out)
    return out
