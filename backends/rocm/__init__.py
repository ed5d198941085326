"""AMD GPUs: HIP through hip-python; hiprtc or an offline clang as compiler."""
