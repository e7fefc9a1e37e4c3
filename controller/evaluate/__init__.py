"""Cost to reach quality, C(q), and the diagnostics that say where a gain comes from."""
