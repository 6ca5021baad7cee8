"""A small shop for a tiny policy: its settings, the policy, and demonstrations to start it from."""

from lit_treerl.data.webshop.demonstrations import WebShopDemonstrations
from lit_treerl.data.webshop.policy import PAGES, POLICY, SEED_POLICY, SHOP

__all__ = ["PAGES", "POLICY", "SEED_POLICY", "SHOP", "WebShopDemonstrations"]
