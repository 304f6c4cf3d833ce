# Launchers that headers declare, each in a file of its own, which this writes: kernels of one template take a minute to
# compile together. Sets launchers.
set(launchers)

# launcher(NAME HEADER PARAMETERS CALL): void NAME(PARAMETERS), which HEADER declares, is one CALL.
function(launcher name header parameters call)
  configure_file(${CMAKE_CURRENT_SOURCE_DIR}/launcher.cu.in ${name}.cu @ONLY)
  set(launchers ${launchers} ${CMAKE_CURRENT_BINARY_DIR}/${name}.cu PARENT_SCOPE)
endfunction()

set(parameters "Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args")
set(arguments "stream, head_dim, blocks, early, args")
launcher(attention_latent_tiles attention/attention_latent_cuda.cuh "${parameters}" "launch_latents(${arguments})")
launcher(attention_hopper_wide_tiles attention/attention_hopper_cuda.cuh "${parameters}"
  "launch_wide_tiles(${arguments})")
foreach(backend hopper portable)
  launcher(attention_${backend}_tiles attention/attention_${backend}_cuda.cuh "${parameters}"
    "launch_${backend}<false>(${arguments})")
  launcher(attention_${backend}_code_tiles attention/attention_${backend}_cuda.cuh "${parameters}"
    "launch_${backend}<true>(${arguments})")
endforeach()

# TILES: the template that a launcher of experts' matrices instantiates.
macro(grouped_launcher name tiles)
  launcher(${name} grouped_linear/grouped_linear_cuda_tiles.cuh
    "Stream& stream, const GroupedArgs& args, int processors" "${tiles}(stream, args, processors)")
endmacro()

grouped_launcher(launch_grouped_few_gate_up "launch_few_rows<PanelEnd::kGateUp>")
grouped_launcher(launch_grouped_few_plain "launch_few_rows<PanelEnd::kPlain>")
grouped_launcher(launch_grouped_many_gate_up "launch_many_rows<PanelEnd::kGateUpQuick>")
grouped_launcher(launch_grouped_many_plain "launch_many_rows<PanelEnd::kPlain>")

# The same of one matrix: numbers, or codes.
macro(tile_launcher name tiles)
  launcher(${name} linear/cuda/linear_cuda_launch.cuh
    "LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args"
    "${tiles}(tile, stream, x_map, args)")
endmacro()
macro(code_tile_launcher name tiles)
  launcher(${name} linear/cuda/linear_cuda_codes_tiles.cuh
    "LinearTile tile, Stream& stream, const CUtensorMap& x_map, const CodeTileArgs& args"
    "${tiles}(tile, stream, x_map, args)")
endmacro()

foreach(halves 2 3)
  tile_launcher(launch_tiles_${halves} "launch_tiles<${halves}, FewRows, TileRows<>>")
  tile_launcher(launch_fp8_tiles_${halves} "launch_tiles<${halves}, FewRows, TileRows<>, DType::kF8E4M3>")
endforeach()
foreach(halves 4 6)
  tile_launcher(launch_tiles_${halves} "launch_tiles<${halves}, AnyRows, ManyRows>")
  tile_launcher(launch_fp8_tiles_${halves} "launch_tiles<${halves}, AnyRows, ManyRows, DType::kF8E4M3>")
endforeach()
foreach(halves 2 3 4 6)
  tile_launcher(launch_fp8_block_tiles_${halves} "launch_fp8_block_tiles<${halves}>")
endforeach()
tile_launcher(launch_fp8_block_bias_tiles "launch_fp8_block_tiles<kBiasHalves, true>")
tile_launcher(launch_pair_tiles "launch_pairs<DType::kBF16, 8, 16, 32, 64>")
tile_launcher(launch_fp8_pair_tiles "launch_pairs<DType::kF8E4M3, 8, 16, 32, 64>")
foreach(type BF16 F8E4M3)
  string(REPLACE "BF16" "" prefix "${type}")
  string(REPLACE "F8E4M3" "fp8_" prefix "${prefix}")
  tile_launcher(launch_${prefix}summary_tiles "launch_tiles<kSummaryHalves, FewRows, ManyRows, DType::k${type}, true>")
  tile_launcher(launch_${prefix}bias_tiles "launch_tiles<kBiasHalves, FewRows, TileRows<>, DType::k${type}, false, true>")
endforeach()
foreach(halves 2 3 6)
  code_tile_launcher(launch_code_tiles_${halves} "launch_code_tiles<${halves}, false, false, 8, 16, 32, 64, 128>")
endforeach()
foreach(halves 2 4)
  code_tile_launcher(launch_wide_code_tiles_${halves} "launch_code_tiles<${halves}, false, true, 8, 16, 32, 64, 128>")
endforeach()
code_tile_launcher(launch_code_bias_tiles "launch_code_tiles<kBiasHalves, true, false, 16, 64, 128>")
code_tile_launcher(launch_wide_code_bias_tiles "launch_code_tiles<kBiasHalves, true, true, 16, 64, 128>")
