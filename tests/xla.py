"""XLA flags for tests and the programs that they start."""

# Most of the time of tests is compiling; with these it is faster. See `optimised` in conftest.
QUICK_XLA = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
TEST_XLA = f" --xla_force_host_platform_device_count=8 {QUICK_XLA}"
