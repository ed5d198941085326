"""The CUDA backend: NVRTC compiles, the driver's C interface launches. Vendor libraries load lazily."""
