"""From logits to one token a row, with its log-probabilities.

The steps of a row, in vLLM's order:

1. raw log-probabilities: log-softmax of the untouched logits; all reported log-probabilities and ranks are these;
2. only allowed_token_ids remain, and of them those that the grammar mask allows; bad_token_ids go; before min_tokens
   outputs the EOS and stop ids go;
3. logit_bias is added; repetition_penalty divides positive and multiplies negative logits of all ids seen (Keskar et
   al., "CTRL", 2019); frequency_penalty and presence_penalty are subtracted for the ids of the output;
4. temperature 0 (below GREEDY_BELOW): the largest logit, among equals the lowest id. Otherwise, over logits /
   temperature: min_p keeps the tokens at least min_p times as likely as the likeliest, top_k the k likeliest and their
   equals, top_p the fewest likeliest ones that hold p of what is left; then the largest logit + Gumbel noise wins.

The noise is a pure function of (seed, output position, token id): Philox4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", 2011) with key (seed's low word, seed's high word) and counter (token id // 4, position,
0, 0), whose word number token id % 4 is w; u = min((w + 0.5) / 2^32, 1 - 2^-24), noise = -log(-log1p(-u)), all in
float32. So a token depends on no other row, no batch, no device and no earlier draw.
"""

GREEDY_BELOW = 1e-5
