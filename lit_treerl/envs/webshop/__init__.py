"""WebShop (arXiv 2207.01206): to buy what an instruction asks for in a shop of pages, without a server."""

from lit_treerl.envs.webshop.demonstrations import shopping_episode
from lit_treerl.envs.webshop.env import WebShop
from lit_treerl.envs.webshop.shop import Shop, ShopSettings, open_shop
from lit_treerl.envs.webshop.shopper import Shopper

__all__ = ["Shop", "ShopSettings", "Shopper", "WebShop", "open_shop", "shopping_episode"]
