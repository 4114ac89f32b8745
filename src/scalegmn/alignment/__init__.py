"""Networks compared, aligned, merged and balanced along their symmetries; nothing here is trained."""
