"""What is never cut, and why: every primitive that has no factor rule has a reason here.

Values are not split across a barrier; `explain` gives the reason. A primitive that is in neither registry is a barrier
too, and a test says so as soon as a JAX release brings one.
"""

from __future__ import annotations

from exla.ir.factors import BARRIERS

REASONS = {
    "it moves data between devices, which have to take part at the same time": """
        all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start all_gather_start
        all_to_all all_to_all_done all_to_all_start axis_index pbroadcast pbroadcast_dynamic pbroadcast_done
        pbroadcast_start pmax pmin ppermute ppermute_done ppermute_start precv preduced psend psum psum_done
        psum_invariant psum_invariant_start psum_start pvary ragged_all_to_all reduce_scatter reduce_scatter_done
        reduce_scatter_start reduced_vary_cast reduced_vary_cast_p unreduced_pmax unreduced_pmin unreduced_psum
        unreduced_psum_start unreduced_reduce_scatter unreduced_reduce_scatter_start vary_unreduced_cast
        vary_unreduced_cast_p global_array_to_host_local_array host_local_array_to_global_array
    """,
    "it says where data lives": """
        device_put inspect_sharding layout_constraint relayout reshard sharding_constraint
        with_memory_space_constraint custom_partitioning core_map pin unpin
    """,
    "several devices share it out, and each cuts its own share": """
        shard_map
    """,
    "it has an effect that must happen once": """
        after_all create_token debug_callback debug_print io_callback check dce_sink log_extend log_read new_log
        shape_assertion unreachable
    """,
    "it reads or writes memory in place": """
        accum_grad_in_ref addupdate box_get box_set create_linear empty empty2 empty_ref free_ref freeze get new_box
        new_ref run_state swap
    """,
    "what it calls is not JAX's": """
        call_exported cudnn_fusion dot_product_attention_bwd dot_product_attention_bwd_wrapper
        dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd
        dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd dot_product_attention_fwd_wrapper ffi_call
        pure_callback pallas_call
    """,
    "its body is a function of the user's, whose axes are not followed": """
        call call_hi_primitive call_hi_primitive_linearized composite custom_lin custom_vmap_call
        eval_jaxpr linear_call select_and_scatter stage
    """,
    "its random numbers are drawn in order": """
        philox2x32 philox4x32 rng_bit_generator rng_uniform threefry4x32
    """,
    "it handles keys, which are small": """
        from_edtype to_edtype iota_2x32_shape
    """,
    "it works on one matrix as a whole": "cholesky_update geqp3 ormqr",
    "its groups have sizes that are only known when it runs": "ragged_dot_general",
    "its operands are scaled in blocks": "scaled_dot scaled_matmul scaled_matmul_wrapper",
    "it tells the compiler something of one operation": "xla_metadata_value",
    "it ties values together on purpose": "optimization_barrier tie",
    "it asks for a size that is not known yet": "dim_as_value dimension_size platform_index",
    "exla has split it already": "exla_split",
    "it only exists while a function is being differentiated or traced": "zeros_like broadcast_to remat_opt",
}

for _reason, _names in REASONS.items():
    for _name in _names.split():
        BARRIERS.register(_name)(_reason)
