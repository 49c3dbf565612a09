"""Families of the zoo: programs that are variations of one another.

A cost model that has seen one of a family has as good as seen the others, so that a family is trained on or held out as
a whole.
"""

from __future__ import annotations

FAMILIES: dict[str, tuple[str, ...]] = {
    "kernel_products": (
        *("rbf_product", "matern_product", "periodic_product", "additive_product"),
        *("kernel_density", "kernel_gradient"),
    ),
    "marginal_likelihood": ("exact_marginal_likelihood", "sgpr_gradient"),
    "neighbours": ("nearest_neighbours", "cosine_top5"),
    "chamfer": ("chamfer", "chamfer_gradient", "hausdorff"),
    "hamming": ("hamming",),
    "transport": ("sinkhorn_half_step", "sinkhorn_fori", "barycentric_map"),
    "sliced_transport": ("sliced_wasserstein",),
    "n_body": ("nbody_forces", "nbody_energy", "lennard_jones_forces"),
    "stein": ("svgd_step",),
    "clustering": ("mean_shift", "kmeans_step"),
    "t_sne": ("tsne_gradient",),
    "pair_counts": ("radial_distribution", "ripley_k"),
    "smoothed_particles": ("sph_density",),
    "attention": ("attention", "causal", "alibi", "grouped_query", "cross"),
    "transformer": ("block", "block_training_step"),
    "pair_representation": ("outer_product_mean", "triangle_attention", "neighbourhood_attention"),
    "contrastive": ("clip", "info_nce"),
    "cross_entropy": ("linear_cross_entropy",),
    "ranking": ("ranknet", "cox_partial_likelihood", "kendall_tau"),
    "convolution": ("conv_net", "fft_convolution"),
    "rays": ("ray_triangles", "ray_spheres", "volume_rendering"),
    "splats": ("gaussian_splats", "non_local_means"),
    "boxes": ("box_overlaps",),
    "message_passing": ("graph_convolution", "graph_attention", "edge_network"),
    "point_clouds": ("continuous_filter", "equivariant_layer"),
    "recurrent": ("rnn_gradient", "selective_scan"),
    "alignment": ("smith_waterman",),
    "embedding": ("embedding_bag", "bigram_scores", "bootstrap_means"),
    "chains": ("einsum_chain",),
    "beamforming": ("delay_and_sum", "phased_power"),
    "fourier_sums": ("visibilities", "complex_visibilities", "structure_factor"),
    "spectra": ("spectrogram", "back_projection"),
    "two_samples": ("maximum_mean_discrepancy", "distance_correlation"),
    "derivatives": ("jacobian", "hessian_diagonal", "example_norms", "laplacian"),
}
"""Family -> its programs; those of the zoo that need nothing are in none."""
