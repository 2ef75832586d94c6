"""What to measure next, over weeks: which row of a table is which, what was told of it, and what is pending."""

from explore.campaign.campaign import Campaign, folder_of
from explore.campaign.memory import Memory, Row, Schema
from explore.campaign.reading import short

__all__ = ["Campaign", "Memory", "Row", "Schema", "folder_of", "short"]
