"""The demo's text: pairs that say the same in other words. Two different pairs have nothing in common."""

from __future__ import annotations

PARAPHRASES: tuple[tuple[str, str], ...] = (
    ("A man is playing the guitar on stage.", "Someone performs guitar music in front of an audience."),
    (
        "The company reported record profits this quarter.",
        "Quarterly earnings at the firm hit an all-time high.",
    ),
    ("How can I reset my password?", "I forgot my password and need to change it."),
    (
        "Heavy rain flooded several streets downtown.",
        "Streets in the city centre were under water after a downpour.",
    ),
    ("The chef seasoned the soup with fresh basil.", "Fresh basil was added to the soup by the cook."),
    ("Scientists discovered a planet outside our solar system.", "A new exoplanet was found by astronomers."),
)
