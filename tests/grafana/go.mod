// A module of its own: Grafana's models are no dependency of the product.
module github.com/slurm-vgpu/slurm-vgpu/tests/grafana

go 1.26.0

require github.com/grafana/grafana-foundation-sdk/go v0.0.22
