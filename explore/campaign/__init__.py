"""Long-running campaigns on a table: the identity, measurements and pending suggestion of each row."""

from explore.campaign.campaign import Campaign, folder_of
from explore.campaign.memory import Memory, Row, Schema, short

__all__ = ["Campaign", "Memory", "Row", "Schema", "folder_of", "short"]
