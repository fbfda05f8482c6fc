"""The pages: the shop, the admin site, and the dashboard behind its login."""

from django.contrib import admin
from django.urls import include, path
from orders import views

urlpatterns = [
    path("", views.orders, name="orders"),
    path("<int:number>/", views.order, name="order"),
    path("admin/", admin.site.urls),
    path("eventmq/", include("eventmq_contrib.django.dashboard")),
]
