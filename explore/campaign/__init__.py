"""Campaigns over weeks: the identity, measurements and pending suggestions of a table's rows."""

from explore.campaign.campaign import Campaign, folder_of
from explore.campaign.memory import Memory, Row, Schema, short

__all__ = ["Campaign", "Memory", "Row", "Schema", "folder_of", "short"]
