"""Long-running campaigns: track the identity, measurements and pending suggestions of each row of a table."""

from explore.campaign.campaign import Campaign, folder_of
from explore.campaign.memory import Memory, Row, Schema, short

__all__ = ["Campaign", "Memory", "Row", "Schema", "folder_of", "short"]
