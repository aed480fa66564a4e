"""Flags of XLA for tests, most of whose time is compiling."""

# Of programs that tests start.
QUICK_XLA = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
