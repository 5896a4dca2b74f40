package waveinfer;

/**
 * A model's hyper-parameters.
 *
 * @param layers transformer layers
 * @param hidden width of the residual stream
 * @param queryHeads a multiple of {@code kvHeads}
 * @param kvHeads heads of keys and values
 * @param headDim numbers of a head
 * @param ffn width of the feed-forward block
 * @param vocab token ids are in [0, vocab)
 * @param bosToken -1: none
 * @param eosToken -1: none; {@link Event#kind} knows every token that ends an answer
 * @param maxPositions the model was made for at most so many tokens; enforced where it is not
 *     implemented beyond them
 * @param parameters weights, counted
 * @param weightBytes as stored in the file
 * @param kvBytesPerToken all layers, with f16 KV, without index
 * @param architecture "llama", "qwen2" or "qwen3"
 * @param name as the file calls it; may be empty
 * @param weightType of most weight bytes: "f16", "q8_0", "q4_k" and so on
 * @param chatFamily "template" if the file has a chat template, empty if it has none
 */
public record ModelInfo(
    int layers,
    int hidden,
    int queryHeads,
    int kvHeads,
    int headDim,
    int ffn,
    int vocab,
    int bosToken,
    int eosToken,
    long maxPositions,
    long parameters,
    long weightBytes,
    long kvBytesPerToken,
    String architecture,
    String name,
    String weightType,
    String chatFamily) {
  static ModelInfo of(wi_model_info from) {
    return new ModelInfo(
        from.getLayers(),
        from.getHidden(),
        from.getQuery_heads(),
        from.getKv_heads(),
        from.getHead_dim(),
        from.getFfn(),
        from.getVocab(),
        from.getBos_token(),
        from.getEos_token(),
        from.getMax_positions(),
        from.getParameters(),
        from.getWeight_bytes(),
        from.getKv_bytes_per_token(),
        from.getArchitecture(),
        from.getName(),
        from.getWeight_type(),
        from.getChat_family());
  }
}
