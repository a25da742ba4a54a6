# What each system of run.sh and speeds.sh sets beside multi30k.yaml; to be sourced by them.

plain="model.arch=transformer_base model.encoder_layers=3 model.decoder_layers=3
  model.d_model=256 model.d_ff=1024 model.heads=4 train.schedule.lr=0.002"
recurrent="train.optimizer.betas=[0.9,0.999] train.schedule.lr=0.002
  train.schedule.warmup_updates=200"
declare -A settings=(
  [transformer]=$plain
  [rnnsearch]="model.arch=rnnsearch_small $recurrent"
  [gnmt]="model.arch=gnmt_small $recurrent train.schedule.lr=0.008"
  [conv_s2s]="model.arch=conv_s2s_small train.schedule.lr=0.002 train.schedule.warmup_updates=200"
  [bytenet]="model.arch=bytenet_small train.schedule.lr=0.002"
  [pre_norm]="$plain model.residual=pre_norm"
  [deep_norm]="$plain model.residual=deep_norm train.schedule.lr=0.001"
  [rms_norm]="$plain model.norm=rms_norm"
  [gelu]="$plain model.feed_forward=gelu"
  [swiglu]="$plain model.feed_forward=swiglu model.d_ff=683"
  [mixture_of_experts]="$plain model.feed_forward=mixture_of_experts"
  [rotary]="$plain model.positions=rotary"
  [alibi]="$plain model.positions=alibi"
  [relative]="$plain model.positions=relative"
  [learned]="$plain model.positions=learned"
  [no_positions]="$plain model.positions=none"
  [multi_query]="$plain model.key_value_heads=1"
  [neighbourhood]="$plain model.encoder_attention=neighbourhood model.encoder_attention.radius=8"
  [performer]="$plain model.encoder_attention=performer"
  [linformer]="$plain model.encoder_attention=linformer"
  [deep_shallow]="$plain model.encoder_layers=6 model.decoder_layers=1
    train.schedule.lr=0.001"
)

# Refuses names that are not there; what follows a "=" is not part of a name.
check_systems() {
  local system
  for system in "$@"; do
    if [[ ! ${settings[${system%%=*}]:-} ]]; then
      echo "${0##*/}: no settings for '${system%%=*}'; known: ${!settings[*]}" >&2
      exit 2
    fi
  done
}
