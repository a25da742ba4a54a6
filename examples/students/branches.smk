# Optional branches, before the teachers: the training corpus filtered by dual cross-entropy
# (Junczys-Dowmunt 2018), and tagged back-translation of monolingual text (Caswell et al. 2019).
# Both take models that learn from the whole corpus by the recipe of the teachers, or trained runs.

DIRECTIONS = {"forward": (S, T), "reverse": (T, S)}
MODELS = {name: config[f"{name}_run"] or f"{W}/{name}" for name in DIRECTIONS}
WHOLE_CORPUS, WHOLE_FILES = quote(CORPUS["train"]), corpus("train")
if config["filter_keep"] is not None:
    CORPUS["train"] = f"{W}/filtered"
BACK_TRANSLATED = [f"{W}/back.{side}" for side in (S, T)] if config["monolingual"] else []
TEACHER_TEXT = (
    f"--set 'preprocess.train=[{CORPUS['train']}, {{path: {W}/back, tag: bt}}]'"
    if config["monolingual"]
    else f"--train {quote(CORPUS['train'])}"
)


def trained(direction):
    return [] if config[f"{direction}_run"] else f"{W}/done/{direction}"


rule auxiliary_data:
    input:
        WHOLE_FILES,
        corpus("valid"),
    output:
        touch(f"{W}/done/{{direction}}_data"),
    log:
        f"{W}/log/{{direction}}_data.txt",
    params:
        languages=lambda wildcards: "-s {} -t {}".format(*DIRECTIONS[wildcards.direction]),
    shell:
        f"nmt preprocess {recipe('teacher')} {{params.languages}} --train {WHOLE_CORPUS} "
        f"--valid {VALID} --output-dir {W}/{{wildcards.direction}}-bin > {{log}} 2>&1"


rule auxiliary:
    input:
        f"{W}/done/{{direction}}_data",
    output:
        touch(f"{W}/done/{{direction}}"),
    log:
        f"{W}/log/{{direction}}.txt",
    threads: config["threads"]
    resources:
        gpu=config["gpus"],
    shell:
        f"nmt train {recipe('teacher')} --data {W}/{{wildcards.direction}}-bin "
        f"--save-dir {W}/{{wildcards.direction}} >> {{log}} 2>&1"


rule filter:
    input:
        trained("forward"),
        trained("reverse"),
        WHOLE_FILES,
    output:
        f"{W}/filtered.tsv",
    log:
        f"{W}/log/filter.txt",
    threads: config["threads"]
    resources:
        gpu=config["gpus"],
    shell:
        f"nmt filter {WHOLE_CORPUS} --forward {quote(MODELS['forward'])} --reverse {quote(MODELS['reverse'])} "
        f"--keep {config['filter_keep']} --output {{output}} 2> {{log}}"


rule filtered:
    input:
        f"{W}/filtered.tsv",
    output:
        source=f"{W}/filtered.{S}",
        target=f"{W}/filtered.{T}",
    shell:
        "cut -f 1 {input} > {output.source} && cut -f 2 {input} > {output.target}"


rule monolingual_shard:
    input:
        config["monolingual"] or [],
    output:
        f"{W}/monolingual/{{shard}}.{T}",
    shell:
        f"awk 'NR % {config['shards']} == {{wildcards.shard}}' {{input:q}} > {{output}}"


rule back_translate:
    input:
        trained("reverse"),
        text=f"{W}/monolingual/{{shard}}.{T}",
    output:
        f"{W}/back/{{shard}}.{S}",
    log:
        f"{W}/log/back{{shard}}.txt",
    threads: config["threads"]
    resources:
        gpu=config["gpus"],
    shell:
        f"nmt translate --model {quote(MODELS['reverse'])} {config['back_translate_flags']} "
        "--output {output} {input.text} 2> {log}"


rule back_translated:
    input:
        sources=expand(f"{W}/back/{{shard}}.{S}", shard=SHARDS),
        targets=expand(f"{W}/monolingual/{{shard}}.{T}", shard=SHARDS),
    output:
        source=f"{W}/back.{S}",
        target=f"{W}/back.{T}",
    shell:
        "cat {input.sources} > {output.source} && cat {input.targets} > {output.target}"
