"""Long-running campaigns on a table: the identity, measurements and pending suggestion of each row."""

from explore.campaign.campaign import Campaign, folder_of
from explore.campaign.state import Row, Schema, State, short

__all__ = ["Campaign", "Row", "Schema", "State", "folder_of", "short"]
