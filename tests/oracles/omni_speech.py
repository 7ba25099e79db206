"""Writes tests/golden/omni/speech: a small deterministic random Qwen3-Omni that is complete (thinker, talker with code predictor,
code2wav), in the layout of published directories, and what Hugging Face transformers computes of it from a conversation to a
waveform (float32, CPU, eager attention, everything greedy; the code predictor is patched, since generate() has it sample).

Run from the repository's root, in the root that holds transformers 5.12, after vision_tiny.py and omni_thinker.py:
    OMP_NUM_THREADS=1 oracle python3 tests/oracles/omni_speech.py

The directory is served with the tokenizer of speaking_tokenizer() (tests/e2e/omni_model.py): that of models/demo, special tokens
behind its 3072, and five merges, because "system", "user" and "assistant" are several tokens of the demo and a talker looks for
roles of one token. Each sound of a prompt is encoded alone.

spoken.json, a list of conversations:
    messages: role and parts (texts, names of tests/golden/vision/pictures and of clips/); frames of the spectrogram of each sound
    prompt; max_tokens; greedy: the thinker's ids; turn_end: the last of them is im_end; text: of the others
    voice; repetition_penalty, over the first codes of the frames; talker_max_new_tokens
    codes [frames][groups]; codec_eos: the talker ended by itself, otherwise at talker_max_new_tokens
golden.safetensors: tts_pad f32 [hidden], and for each conversation K
    media_K f32 [R, thinker's hidden]: hidden_states[accept_hidden_layer] of the R placeholder rows of the prompt, if any
    rows_K f32 [T, hidden]: the talker's prompt; ids_K i32 [T], positions_K i32 [3, T], delta_K i32 [1]
    trailing_K f32 [N - 1, hidden]: text rows behind the prompt, of N ids in greedy; logits_K f32 [vocabulary], of row T - 1
    samples_K f32: code2wav of all codes at once
Of any two likeliest logits of a step the difference is at least MIN_GAP (codes: MIN_CODE_GAP) of the range, and the codes
differ with another voice, without the first trailing row, with pad rows of zeros, without the penalty, with hidden states of zeros,
and with plain positions for pictures.

What transformers does, with a prompt of P ids of which the thinker continues g[0] to g[N - 1]; check_rows() repeats 1 to 4.
1. Rows of the thinker: P + N - 1. The last id sampled is never an input, so it has no row: im_end is not spoken; of a text that
   ended at max_tokens the last token, which is in the text, is not spoken either. N = 1 is an error (8 rows meet 9).
2. Segments begin at im_start of the prompt and extend to the next, so `im_end \n` belong to them; the last ends with the rows.
   The id after im_start is the role: system segments and assistant segments that are not the last are left out, user segments
   are taken in their sequence, any other role is an error.
3. A row of a user segment is hidden_projection(hidden_states[accept_hidden_layer]) where the id is a placeholder of audio, image
   or video, and text_projection(embedding) elsewhere: im_start, role, newline, start and end of media, im_end. hidden_states[k]
   is the output of layer k - 1 before deepstack is added, so it is the input of layer k if k > the number of deepstack layers.
4. Nine rows of the last segment; a: its rows text_projection(embedding), a[0] to a[2] are im_start, assistant, newline and
   a[3 + i] is g[i]; pad, bos, eos: text_projection(embedding of tts_...); E: the talker's codec_embedding.
       0 to 2  a[0], a[1], a[2]                 7  bos + E(codec_pad)
       3 to 6  pad + E(nothink), pad + E(think_bos), pad + E(think_eos), pad + E(voice)
       8       a[3] + E(codec_bos)
   trailing: a[4], ..., the row of g[N - 2], then eos: N - 1 rows.
5. Positions are those of a prompt of these T rows with the ids of the user segments and nine tts_pad, from 0: the segments left
   out leave no gap. Three axes if there is a picture, otherwise 0, 1, 2, ... Row T + k has T + k + delta on each axis.
6. Sample k is drawn from the logits of row T - 1 + k. The penalty is over the samples before it: at k = 0 over nothing, never
   over the prompt or other groups. [vocabulary - 1024, vocabulary) except codec_eos is suppressed.
7. Frame k: sample k and the groups - 1 codes that the predictor makes of (hidden row T - 1 + k after the final norm,
   E(sample k)), computed when sample k becomes an input. Row T + k = the sum of the frame's embeddings + trailing[k], or + pad
   for k >= N - 1. The last sample never is an input, so it is no frame: after S samples there are S - 1 frames. Ended by
   codec_eos: all samples before it. Ended at talker_max_new_tokens: one frame fewer than that; the last sample is dropped.
   codec_eos as the first sample is an error (no codes to stack).
"""
import itertools
import json
import pathlib
import random
import shutil

import torch
from safetensors.torch import save_file
from transformers import logging

import omni_thinker as thinker_oracle
from omni_speaker import (CODEC, IDS, SPEECH_TOKENS, TALKER, TEXT, TOP_IDS, TURN_END, VOICES, Prompts, Recorder, Unwanted, gap_of,
                          randomize, speaker, stored_config)

OUT = pathlib.Path("tests/golden/omni/speech")
MIN_GAP = 1e-3  # of the two likeliest logits, in a step of the thinker
MIN_CODE_GAP = 2e-3  # in a step of the talker or of the code predictor
FEWEST, TRIES = 10, 150  # frames; choices of phrases
SYSTEM = "You are a friendly voice."
PHRASES = ["Tell me a story.", "What is that?", "Is it loud?", "Who is here?", "Where is the red ball?", "Say something.",
           "Why did the dog run?", "How many birds are in the tree?", "Can you sing?", "Good morning!", "What comes next?",
           "The cat sat down.", "Do you like cake?", "Is the sun warm?", "Name a big animal.", "My friend was sad.",
           "Look at this.", "Listen to this.", "What did Lily find?", "Help me, please.", "It was a dark night.",
           "Once upon a time", "We went to the park.", "Was it fun?"]
# Messages, "?" stands for a phrase that is searched; a voice, the penalty, the most tokens and frames; which end by themselves.
CASES = [
    ([("system", [SYSTEM]), ("user", ["?"])], "ethan", 1.0, 8, 12, ""),
    ([("system", [SYSTEM]), ("user", ["?"]), ("assistant", ["It is a small ball."]), ("user", ["?"])], "chelsie", 1.05, 6, 14, ""),
    ([("user", ["?"])], "chelsie", 1.0, 10, 13, "text"),
    ([("system", [SYSTEM]), ("user", ["?", "sweep.wav"])], "ethan", 1.05, 8, 16, ""),
    ([("system", [SYSTEM]), ("user", ["gradient.png", "?"])], "chelsie", 1.0, 7, 11, ""),
    ([("user", ["click.wav", "?", "tall.webp"])], "ethan", 1.05, 9, 15, ""),
    ([("system", [SYSTEM]), ("user", ["photo.jpg", "?"]), ("assistant", ["I see a tree."]), ("user", ["sweep.wav", "?"])],
     "chelsie", 1.0, 6, 12, ""),
    ([("system", [SYSTEM]), ("user", ["?"])], "ethan", 1.05, 10, 24, "speech"),
]


def text_is_clear(thought, case, prompt_rows, tokenizer):
    _, _, _, tokens, _, ends = case
    ids = thought.sequences[0, prompt_rows:].tolist()
    ended = ids[-1] == TURN_END
    wanted = {"text": ended and 4 <= len(ids) < tokens, "speech": len(ids) >= 4, "": not ended}[ends]
    plain = all(i < 3069 for i in ids[:len(ids) - ended]) and "\ufffd" not in tokenizer.decode(ids)
    return wanted and plain and min(gap_of(s[0]) for s in thought.scores) >= MIN_GAP


def clear_samples(recorder, case):
    """How many samples of the talker are wanted: as many as have clear gaps, those of their frames too; 0: too few."""
    _, _, _, _, most, ends = case
    ids = recorder.spoken.sequences[0].tolist()
    ended = ids[-1] == CODEC["codec_eos_token_id"]
    first = (gap_of(scores[0]) for scores in recorder.spoken.scores)
    gaps = [min(pair) for pair in itertools.zip_longest(first, recorder.code_gaps, fillvalue=1)]
    clear = next((k for k, gap in enumerate(gaps) if gap < MIN_CODE_GAP), len(gaps))
    wanted = len(ids) if ended else min(clear, most + 1)
    right = clear == len(ids) and ended if ends == "speech" else not ended
    return wanted if right and wanted > FEWEST else 0


def codes_of(found):
    return torch.cat([hidden[-1] for hidden in found.hidden_states if hidden[-1] is not None])


def is_sensitive(recorder, case, media, samples, codes):
    """Each of these mistakes would change the codes."""
    given = recorder.given
    rows, trailing, pad = given["inputs_embeds"], given["trailing_text_hidden"], given["tts_pad_embed"]
    talker, voices = recorder.model.talker, list(VOICES.values())
    other = rows.clone()
    change = talker.get_input_embeddings().weight[voices]
    other[:, -3] += (change[1] - change[0]) * (1 if case[1] == "ethan" else -1)
    mistakes = [dict(inputs_embeds=other), dict(trailing_text_hidden=trailing[:, 1:]), dict(tts_pad_embed=0 * pad)]
    if case[2] != 1:
        mistakes.append(dict(repetition_penalty=1.0))
    if media.any():
        zeros = rows.clone()
        zeros[0, media] = talker.hidden_projection(torch.zeros(TEXT["hidden_size"]))
        mistakes.append(dict(inputs_embeds=zeros))
    if "image_grid_thw" in given:
        mistakes.append(dict(image_grid_thw=None, audio_feature_lengths=None))
    return all(not torch.equal(codes_of(talker.generate(**{**given, "max_new_tokens": samples, **mistake})), codes)
               for mistake in mistakes)


def search(recorder, prompts, case):
    """The first phrases for which all steps are clear: the conversation and its tensors; None where there are none."""
    messages, voice, penalty, tokens, most, _ = case
    blanks = sum(part == "?" for _, parts in messages for part in parts)
    draw = random.Random(0)
    for _ in range(TRIES):
        phrases = [" ".join(draw.sample(PHRASES, 2)) for _ in range(blanks)]
        left = iter(phrases)
        filled = [(role, [next(left) if part == "?" else part for part in parts]) for role, parts in messages]
        inputs, frames = prompts.make(filled)
        rows = inputs["input_ids"].shape[1]
        recorder.text_wanted = lambda thought, rows=rows: text_is_clear(thought, case, rows, prompts.tokenizer)
        try:
            recorder.run(inputs, voice, penalty, tokens, 1 + most)
            samples = clear_samples(recorder, case)
            if samples == 0:
                continue
            recorder.run(inputs, voice, penalty, tokens, samples)
            found = result_of(recorder, prompts, filled, inputs, frames, case, samples)
        except Unwanted:
            continue
        if found is not None:
            return found
    return None


def result_of(recorder, prompts, messages, inputs, frames, case, samples):
    """What is written for a conversation; None where a mistake would not be seen."""
    _, voice, penalty, tokens, _, _ = case
    talker, given, codes, spoken = recorder.model.talker, recorder.given, recorder.codes, recorder.spoken
    prompt, new = recorder.thought.sequences[0].split([inputs["input_ids"].shape[1], len(recorder.thought.scores)])
    ids = given["talker_input_ids"]
    placeholders = torch.tensor([IDS[f"{kind}_token_id"] for kind in ("image", "audio", "video")])
    media = torch.isin(ids[0], placeholders)
    ended = spoken.sequences[0, -1] == CODEC["codec_eos_token_id"]
    assert codes.shape[2] == spoken.sequences.shape[1] - 1 and torch.equal(codes[0, 0], spoken.sequences[0, :-1])
    hidden = torch.cat([step[TALKER["accept_hidden_layer"]] for step in recorder.thought.hidden_states], 1)[0]
    with torch.no_grad():
        positions, delta = talker.get_rope_index(ids, given.get("image_grid_thw"), None, torch.ones_like(ids), None,
                                                 given.get("audio_feature_lengths"))
        tensors = dict(rows=given["inputs_embeds"][0], ids=ids[0].int(), positions=positions[:, 0].int(),
                       delta=delta.flatten().int(), media=hidden[:len(prompt)][torch.isin(prompt, placeholders)],
                       trailing=given["trailing_text_hidden"][0], logits=spoken.logits[0][0],
                       samples=recorder.model.code2wav(codes)[0, 0])
        check_rows(recorder, prompt, new, voice, tensors)
        if len(set(codes[0, 0].tolist())) < 6 or not is_sensitive(recorder, case, media, samples, codes[0].T):
            return None
    turn_end = bool(new[-1] == TURN_END)
    spoken_part = new[:-1].tolist() if turn_end else new.tolist()
    return dict(messages=[dict(role=role, parts=parts) for role, parts in messages], frames=frames, prompt=prompt.tolist(),
                max_tokens=tokens, greedy=new.tolist(), turn_end=turn_end,
                text=prompts.tokenizer.decode(spoken_part, skip_special_tokens=True), voice=voice, repetition_penalty=penalty,
                talker_max_new_tokens=samples, codec_eos=bool(ended), codes=codes[0].T.tolist()), tensors


def check_rows(recorder, prompt, new, voice, tensors):
    """The rows of the prompt and behind it, as the findings of this file's head describe them."""
    model, ids = recorder.model, prompt.tolist()
    talker, embed = model.talker, model.thinker.get_input_embeddings()
    codec = talker.get_input_embeddings()

    def text(*tokens):
        return talker.text_projection(embed(torch.tensor(tokens)))

    starts = [i for i, id in enumerate(ids) if id == TOP_IDS["im_start_token_id"]] + [len(ids)]
    rows, media = [], iter(tensors["media"])
    for begin, end in zip(starts, starts[1:]):
        if ids[begin + 1] == TOP_IDS["user_token_id"]:
            rows += [talker.hidden_projection(next(media)) if id in (IDS["image_token_id"], IDS["audio_token_id"]) else text(id)[0]
                     for id in ids[begin:end]]
    pad, bos, eos = text(*SPEECH_TOKENS.values())
    special = codec(torch.tensor([CODEC["codec_nothink_id"], CODEC["codec_think_bos_id"], CODEC["codec_think_eos_id"],
                                  VOICES[voice], CODEC["codec_pad_id"], CODEC["codec_bos_id"]]))
    rows += [*text(*ids[-3:]), *(pad + special[:4]), bos + special[4], text(int(new[0]))[0] + special[5]]
    assert ids[-3:-1] == [TOP_IDS["im_start_token_id"], TOP_IDS["assistant_token_id"]] and next(media, None) is None
    assert torch.allclose(torch.stack(rows), tensors["rows"], atol=1e-5)
    trailing = torch.cat([text(*new[1:-1].tolist()), eos[None]])
    assert torch.allclose(trailing, tensors["trailing"], atol=1e-5)
    assert torch.allclose(pad, recorder.given["tts_pad_embed"][0, 0], atol=1e-5)


def write(model):
    recorder, prompts = Recorder(model), Prompts()
    for seed in range(13, 100):  # those before lack phrases for a case
        randomize(model, seed)
        results = {}
        for k in sorted(range(len(CASES)), key=lambda k: CASES[k][-1] == ""):  # the hard ones first
            results[k] = search(recorder, prompts, CASES[k])
            if results[k] is None:
                print("seed", seed, "has no phrases for case", k)
                break
        else:
            break
    else:
        raise SystemExit("no seed has clear greedy steps")
    results = [results[k] for k in range(len(CASES))]
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    golden = {f"{key}_{k}": value.contiguous() for k, (_, tensors) in enumerate(results) for key, value in tensors.items()
              if value.numel() > 0}
    golden["tts_pad"] = recorder.given["tts_pad_embed"][0, 0].contiguous()
    save_file(golden, OUT / "golden.safetensors")
    save_file({k: v.bfloat16().contiguous() for k, v in thinker_oracle.published(model.state_dict(), "").items()},
              OUT / "model.safetensors")
    (OUT / "spoken.json").write_text("[\n" + ",\n".join(json.dumps(one) for one, _ in results) + "\n]\n")
    (OUT / "config.json").write_text(json.dumps(stored_config(), indent=1) + "\n")
    thinker_oracle.write_processor(OUT)
    for one, tensors in results:
        print(one["messages"][-1]["parts"], one["voice"], "text", len(one["greedy"]), one["turn_end"], repr(one["text"]), "frames",
              len(one["codes"]), one["codec_eos"], "clamped", float((tensors["samples"].abs() == 1).float().mean()))
    print("seed", seed, {f.name: f.stat().st_size for f in OUT.iterdir()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    write(speaker())
