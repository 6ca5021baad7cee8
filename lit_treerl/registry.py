"""Classes that configurations may name without their module: a short name works once its class is imported."""

from __future__ import annotations

from lit_treerl.algorithms.grpo import GRPO
from lit_treerl.algorithms.ppo import PPO
from lit_treerl.algorithms.rloo import RLOO
from lit_treerl.algorithms.tree_grpo import TreeGRPO
from lit_treerl.algorithms.tree_ppo import TreePPO
from lit_treerl.data.alfworld import AlfworldDemonstrations
from lit_treerl.data.alfworld_tasks import AlfworldTasks
from lit_treerl.data.datamodule import TreeRolloutDataModule
from lit_treerl.data.embedded_search import EmbeddedRetriever, EmbeddedTasks
from lit_treerl.data.episodes import EmbeddedDemonstrations, EpisodeDataModule, JSONLEpisodes
from lit_treerl.data.sources import HFTasks, JSONLTasks, ParquetTasks
from lit_treerl.data.textworld_tasks import TextWorldTasks
from lit_treerl.data.webshop.demonstrations import WebShopDemonstrations
from lit_treerl.data.webshop_tasks import WebShopTasks
from lit_treerl.envs.alfworld.env import ALFWorld
from lit_treerl.envs.gymnasium_text import GymnasiumText
from lit_treerl.envs.rewards import OutcomeReward, TableReward
from lit_treerl.envs.search_qa import SearchQA
from lit_treerl.envs.textworld_game import TextWorldGame
from lit_treerl.envs.webshop import WebShop
from lit_treerl.module import LitTreeRL
from lit_treerl.retrieval.bm25 import BM25Retriever
from lit_treerl.retrieval.http import HTTPRetriever
from lit_treerl.sampling.transformers import TransformersSampler
from lit_treerl.sampling.vllm import VLLMSampler
from lit_treerl.sft import LitSFT
from lit_treerl.trees.budget import UniformBudget
from lit_treerl.trees.critic_guided import CriticGuidedBudget
from lit_treerl.trees.value_tree import ValueTree

SHORT_NAMES: tuple[type, ...] = (
    *(LitTreeRL, LitSFT),
    *(TreeRolloutDataModule, EpisodeDataModule),
    *(TreeGRPO, GRPO, RLOO, PPO, TreePPO),
    *(TransformersSampler, VLLMSampler),
    *(SearchQA, OutcomeReward, TableReward),
    *(ALFWorld, AlfworldTasks, AlfworldDemonstrations),
    *(GymnasiumText, TextWorldGame, TextWorldTasks),
    *(WebShop, WebShopTasks),
    *(BM25Retriever, HTTPRetriever, EmbeddedRetriever),
    *(JSONLTasks, ParquetTasks, HFTasks, EmbeddedTasks),
    *(JSONLEpisodes, EmbeddedDemonstrations, WebShopDemonstrations),
    *(UniformBudget, CriticGuidedBudget),
    ValueTree,
)
